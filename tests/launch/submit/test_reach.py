"""What one host says of another before ranks start; `tests.launch.test_machines` tries it on two machines."""

import io
import os
import shlex
import socket
from pathlib import Path
from threading import Thread

import pytest

from launch.submit import reach
from tests.launch.stand_in import write_program

_WAY = "allow connections between the hosts of a job on all ports"
_SSH = """echo "$*" >"{folder}/asked"
cat >"{folder}/read"
{answer}"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no address be this machine's own."""
    monkeypatch.setattr(reach, "_is_here", lambda *_: False)


def test_this_machine_needs_no_connection_and_a_name_without_an_address_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)  # no ssh
    user = os.geteuid()
    "name".encode("idna")  # Loads the codec, which another user may not be able to read.
    if user == 0:
        os.seteuid(65534)  # nobody, who may not bind to all ports, learns it too
    try:
        assert reach.main([str(tmp_path), "localhost", "127.0.0.1", socket.gethostname()]) == 0
        assert reach.main([str(tmp_path), "a.invalid", "localhost", "b.invalid"]) == 2
    finally:
        os.seteuid(user)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" cannot")[0] for line in said] == [
        "error: a.invalid: the name",
        "error: b.invalid: the name",
    ]


@pytest.mark.usefixtures("typed", "elsewhere")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("echo Welcome; echo quota: 5 G of 10 >&2; echo port {port}", ()),
        ("printf 'port {port}\\nb cannot connect to a: Connection refused\\n'",
         ("b cannot connect to a: Connection refused; ", _WAY)),
        ("echo port {closed}", (f"{socket.gethostname()} cannot connect to 127.0.0.1: Connection refused; ", _WAY)),
        ("echo python: not found >&2; exit 127", ("python: not found; ssh 127.0.0.1 must work from ",)),
        ("printf 'debug\\nssh: connect to host b port 22: Connection timed out\\n' >&2; exit 255",
         ("ssh: connect to host b port 22: Connection timed out; ssh 127.0.0.1 must work",)),
        ("printf 'Permission denied (publickey).\\n\\n' >&2; exit 255",
         ("Permission denied (publickey); ssh 127.0.0.1 must work",)),
        ("exit 255", ("no output; ssh 127.0.0.1 must work",)),
        ("exec sleep 60", ("no answer within 0.5 s, ", "ssh 127.0.0.1 must work")),
    ],
)  # fmt: skip
def test_another_host_is_asked_over_ssh_and_both_ways_are_tried(
    answer: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my runs"
    if "sleep" in answer:
        monkeypatch.setattr(reach, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # It does not listen.
        port, shut = there.getsockname()[1], closed.getsockname()[1]
        write_program(tmp_path / "ssh", _SSH.format(folder=tmp_path, answer=answer.format(port=port, closed=shut)))
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        found = reach.trouble_with("127.0.0.1", folder)
    assert (found is None) == (not words)
    assert all(each in str(found) for each in ("127.0.0.1: ", *words) if words)
    line = (tmp_path / "asked").read_text(encoding="utf-8")
    assert line.endswith(f" '{folder}'\n"), "the shell of the other host splits words at spaces"
    assert (tmp_path / "read").read_text(encoding="utf-8") == "", "ssh would read what the job script has to read"
    asked = shlex.split(line)
    assert asked[:5] == ["-o", "BatchMode=yes", "-o", "ConnectTimeout=8", "127.0.0.1"]
    assert asked[-4:-2] == ["launch.submit.reach", "--answer"]


def test_an_address_of_no_card_of_this_machine_is_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "ssh", "exit 255")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = reach.trouble_with("192.0.2.1", tmp_path)  # an address for documents, RFC 5737
    assert str(found).startswith("192.0.2.1: no output; ssh 192.0.2.1 must work from ")


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


def test_a_host_that_nobody_connects_to_or_that_never_accepts_ends_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reach, "_CONNECT_S", 0.05)
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        assert reach.main(["--answer", str(port), str(tmp_path)]) == 0
        assert capsys.readouterr().out.count("\n") == 1, "the way back is free"
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        assert reach.main(["--answer", str(port), str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[1].endswith(" cannot connect to 127.0.0.1: timed out")
        for each in waiting:
            each.close()
