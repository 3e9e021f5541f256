"""What one host says of another before ranks start; `tests.launch.test_machines` tries it on two machines."""

import io
import os
import shlex
import socket
import sys
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


def test_an_ordinary_user_learns_which_addresses_are_here() -> None:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody, who may not bind to all ports
    try:
        here = [reach._is_here(socket.AF_INET, address) for address in ("127.0.0.1", "192.0.2.1")]
    finally:
        os.seteuid(user)
    assert here == [True, False], "192.0.2.0/24 is for documents (RFC 5737)"


def test_the_other_host_says_that_it_cannot_connect_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22")
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    statuses: list[int] = []
    thread = Thread(target=lambda: statuses.append(reach.main(["--answer", str(port), str(tmp_path)])))
    thread.start()
    while not output.getvalue():
        pass
    socket.create_connection(("127.0.0.1", int(output.getvalue().split()[1])), timeout=10).close()
    thread.join()
    assert statuses == [0], "the question was answered"
    back = output.getvalue().splitlines()[1]
    assert back == f"{socket.gethostname()} cannot connect to 127.0.0.1: Connection refused"


@pytest.mark.parametrize(
    ("status", "errors", "words"),
    [
        (255, "debug\nssh: connect to host b port 22: Connection timed out\n",
         "b: ssh: connect to host b port 22: Connection timed out; let ssh pass to the host, or name another one"),
        (255, "No route to host.", "b: No route to host; let ssh pass to the host, or name another one"),
        (255, "Network is unreachable", "b: Network is unreachable; let ssh pass to the host, or name another one"),
        (255, "Connection refused", "b: Connection refused; let ssh pass to the host, or name another one"),
        (255, "Permission denied (publickey).\n\n",
         "b: Permission denied (publickey); ssh b must work from a without a question: copy a key there by "
         "ssh-copy-id, and accept its host key once"),
        (255, "", "b: no word; ssh b must work from a without a question: copy a key there by ssh-copy-id, and accept "
         "its host key once"),
        (1, "no run folder\n",
         "b: /runs/1 is not there: put the runs on a file system that all hosts share (paths.runs)"),
        (127, "python: not found",
         f"b: {sys.executable} does not run this program there (python: not found): all hosts need it in the same "
         "folder"),
    ],
)  # fmt: skip
def test_what_ssh_says_becomes_one_line_with_a_remedy(status: int, errors: str, words: str) -> None:
    assert reach._refusal("b", "a", Path("/runs/1"), status, errors) == words


_SSH = """#!/bin/sh
echo "$*" >"{folder}/asked"
cat >"{folder}/read"
{answer}
"""


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("echo port {port}", None),
        ("printf 'port {port}\\nb cannot connect to a: Connection refused\\n'",
         "127.0.0.1: b cannot connect to a: Connection refused; {way}"),
        ("echo port {closed}", "127.0.0.1: {here} cannot connect to 127.0.0.1: Connection refused; {way}"),
        ("echo no run folder >&2; exit 1",
         "127.0.0.1: {folder} is not there: put the runs on a file system that all hosts share (paths.runs)"),
    ],
)  # fmt: skip
def test_another_host_is_asked_over_ssh_and_both_ways_are_tried(
    answer: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my runs"
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # It does not listen.
        port, shut = there.getsockname()[1], closed.getsockname()[1]
        text = _SSH.format(folder=tmp_path, answer=answer.format(port=port, closed=shut))
        (tmp_path / "ssh").write_text(text, encoding="utf-8")
        (tmp_path / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(reach, "_is_here", lambda *_: False)
        found = reach.trouble_with("127.0.0.1", folder, over_gloo=True)
    way = "launchers and ranks use any port: let the hosts of a job reach each other at all ports"
    assert found == (words and words.format(way=way, here=socket.gethostname(), folder=folder))
    told = (tmp_path / "asked").read_text(encoding="utf-8")
    assert told.endswith(f" '{folder}'\n"), "the shell of the other host splits words at spaces"
    assert (tmp_path / "read").read_text(encoding="utf-8") == "", "ssh would read what the job script has to read"
    asked = shlex.split(told)
    assert asked[:5] == ["-o", "BatchMode=yes", "-o", "ConnectTimeout=8", "127.0.0.1"]
    assert asked[-4:-2] == ["launch.submit.reach", "--answer"]
    assert asked[-1] == str(folder)


def test_a_host_that_nobody_connects_to_ends_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reach, "_CONNECT_S", 0.01)
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert reach.main(["--answer", str(server.getsockname()[1]), str(tmp_path)]) == 0
        server.setblocking(False)
        server.accept()[0].close()
    assert capsys.readouterr().out.count("\n") == 1, "the way back is free"


def test_ranks_over_gloo_need_an_address_of_ipv4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("fd00::1", 0, 0, 0))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [address])
    monkeypatch.setattr(reach, "_is_here", lambda *_: False)
    assert reach.trouble_with("b", tmp_path, over_gloo=True) == (
        "b: has the address fd00::1 only, and ranks over Gloo need IPv4: give the host an IPv4 address, or set "
        "launcher: mpirun and communication.backend: mpi"
    )


def test_a_host_without_the_run_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reach.main(["--answer", "1", str(tmp_path / "none")]) == 1
    assert capsys.readouterr() == ("", "no run folder\n")


def test_why_a_host_cannot_be_reached_is_told_also_where_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        assert reach._why_not("127.0.0.1", port) is None
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        assert reach._why_not("127.0.0.1", port) == "timed out"
        for each in waiting:
            each.close()
    assert reach._why_not("127.0.0.1", port) == "Connection refused"


def test_every_host_with_a_trouble_is_told_in_the_order_of_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trouble(host: str, folder: Path, *, over_gloo: bool) -> str | None:
        return None if host == "b" else f"{host} {folder.name} {over_gloo}"

    monkeypatch.setattr(reach, "trouble_with", trouble)
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    assert reach.main([str(tmp_path), "c", "b", "a"]) == 2
    assert capsys.readouterr().err == f"error: c {tmp_path.name} True\nerror: a {tmp_path.name} True\n"
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    assert reach.main([str(tmp_path), "b"]) == 0
    assert reach.main([str(tmp_path), "a"]) == 2
    assert capsys.readouterr().err == f"error: a {tmp_path.name} False\n"
