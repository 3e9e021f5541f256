"""What one host says of another before ranks start; `tests.launch.test_machines` tries it on two machines."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from threading import Thread

import pytest

from launch.submit import reach


def test_this_machine_needs_no_connection_and_a_name_without_an_address_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)  # no ssh
    assert reach.main([str(tmp_path), "localhost", "127.0.0.1", socket.gethostname()]) == 0
    assert reach.main([str(tmp_path), "localhost", "no-such-host.invalid"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no-such-host.invalid: the name has no address on ")
    assert said.count("\n") == 1


def test_the_other_host_says_that_it_cannot_connect_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22")
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    thread = Thread(target=reach.main, args=[["--answer", str(port), str(tmp_path)]])
    thread.start()
    while not output.getvalue():
        pass
    socket.create_connection(("127.0.0.1", int(output.getvalue().split()[1])), timeout=10).close()
    thread.join()
    back = output.getvalue().splitlines()[1]
    assert back == f"{socket.gethostname()} cannot connect to 127.0.0.1: Connection refused"
