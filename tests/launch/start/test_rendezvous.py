"""How ranks find each other: where the servers listen, what ranks are told, and what the key-value server answers."""

import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.load import ROOT, load_cluster
from configs.registry import RendezvousName
from launch.start.rendezvous import RENDEZVOUS, rendezvous_of, serve_values
from tests.launch.stand_in import write_program
from tests.programs import run_program

pytestmark = pytest.mark.usefixtures("with_mxnet")

HERE = socket.gethostname()
ROUTED = "".join(
    re.findall(
        r"src (\S+)",
        run_program("ip", "route", "get", "203.0.113.1").stdout,
    )
    if shutil.which("ip")
    else []
)
"""This machine's address on its default route, or nothing where it has none."""


def _addresses(port: int) -> set[str]:
    """Return the addresses at which a process listens at a port."""
    own = [each.laddr for each in psutil.net_connections("tcp4") if each.status == psutil.CONN_LISTEN]
    return {place.ip for place in own if place.port == port}


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_question_is_held_until_its_value_is_there() -> None:
    with serve_values("127.0.0.1") as port, ThreadPoolExecutor() as pool:
        asked = [pool.submit(_ask, port, "GET", path) for path in ("/global/1", "/global/1", "/global/10")]
        assert _ask(port, "PUT", "/global/1", bytes(100_000)) == (200, b"")
        assert [each.result() for each in asked[:2]] == [(200, bytes(100_000))] * 2
        assert _ask(port, "GET", "/global/1") == (200, bytes(100_000))
        assert not asked[2].done(), "the value of another path is no answer"
        assert _ask(port, "PUT", "/global/10", b"") == (200, b"")
        assert asked[2].result() == (200, b"")
        assert _ask(port, "POST", "/global/1")[0] == 400


@pytest.mark.medium
def test_a_question_about_a_value_that_was_taken_back_is_given_up_and_changes_no_later_one() -> None:
    with serve_values("127.0.0.1") as port:
        assert _ask(port, "PUT", "/global/1", b"old") == (200, b"")
        assert _ask(port, "DELETE", "/global/1") == (200, b"")
        assert _ask(port, "GET", "/global/1")[0] == 404, "a rank that looks at its own timeout must hear so"
        assert _ask(port, "PUT", "/global/1", b"new") == (200, b"")
        assert _ask(port, "GET", "/global/1") == (200, b"new")


def test_a_request_in_pieces_is_obeyed_once_it_is_whole() -> None:
    with serve_values("127.0.0.1") as port, closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as rank:
        rank.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (b"PUT /a HTTP/1.1\r\nCONTENT-length:  3\r\n", b"X: 9\r\n\r\nab"):
            rank.sendall(piece)
            assert _ask(port, "PUT", "/b", b"") == (200, b""), "the server has read what was sent before"
        rank.sendall(b"c")
        assert rank.recv(15) == b"HTTP/1.1 200 OK"
        assert _ask(port, "GET", "/a") == (200, b"abc")


def test_a_request_of_more_than_a_mebibyte_is_broken_off() -> None:
    with serve_values("127.0.0.1") as port:
        assert _ask(port, "PUT", "/global/1", bytes((1 << 20) - 1000)) == (200, b"")
        with pytest.raises(OSError):
            _ask(port, "PUT", "/global/2", bytes(1 << 20))
        assert _ask(port, "DELETE", "/global/1") == (200, b"")


@pytest.mark.medium
def test_strangers_on_the_machine_keep_no_rank_from_its_answer_and_cause_no_traceback() -> None:
    code = f"""
import resource, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from launch.start import rendezvous
rendezvous.REQUEST_S = 0.3
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with rendezvous.serve_values("127.0.0.1") as port:
    print(port, flush=True)
    sys.stdin.read()
"""
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with server, ExitStack() as strangers:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for number in range(100):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(b"PUT / HTTP/1.1\r\nContent-Length: " + (b"9" * 5000 + b"\r\n\r\n" if number % 2 else b""))
        assert _ask(port, "PUT", "/a", b"b") == (200, b"")
        told = server.communicate("")[1]
    assert told == ""


def test_a_rank_that_waits_for_a_value_hears_at_once_that_the_server_ends() -> None:
    with closing(socket.socket()) as rank:
        rank.settimeout(20)
        with serve_values("127.0.0.1") as port:
            rank.connect(("127.0.0.1", port))
            rank.sendall(b"GET /global/1 HTTP/1.1\r\n\r\n")
            assert _ask(port, "PUT", "/global/2", b"") == (200, b"")
        assert rank.recv(12) == b"HTTP/1.1 404"


@pytest.mark.parametrize(
    ("kind", "port", "expected"),
    [
        ("horovod", "HOROVOD_GLOO_RENDEZVOUS_PORT", {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_IFACE": "lo", "HOROVOD_HOSTNAME": "node0",
            "HOROVOD_RANK": "2", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_RANK": "2", "HOROVOD_LOCAL_SIZE": "3",
            "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}),
        ("torch", "MASTER_PORT", {
            "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}),
    ],
)  # fmt: skip
def test_ranks_of_one_machine_meet_on_the_loopback_and_are_told_all_that_their_library_asks_for(
    kind: RendezvousName, port: str, expected: dict[str, str]
) -> None:
    """The server is there before any rank: PyTorch's store gets a socket that is open already."""
    with RENDEZVOUS[kind].local_ranks(3) as start:
        first, last = start(0), start(2)
        found = dict(last)
        assert _addresses(int(found.pop(port))) == {"127.0.0.1"}
    assert found == expected
    assert first.keys() - last.keys() == ({"RANK_STORE_FD"} if kind == "torch" else set())


def test_ranks_that_share_memory_get_one_name_and_every_run_another() -> None:
    names = []
    for _ in range(2):
        with RENDEZVOUS["shared_memory"].local_ranks(3) as start:
            starts = [start(rank) for rank in range(3)]
        (name,) = {each["RANK_MEETING"] for each in starts}
        names.append(name)
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("sets", "served"),
    [
        (["communication.kind=horovod", "launcher=srun"], "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        (["communication.kind=horovod", "launcher=srun", "communication.backend=mpi"], None),
        (["communication.kind=horovod", "launcher=horovodrun"], None),
        (["engine.name=torch", "launcher=srun"], "MASTER_ADDR"),
        (["engine.name=torch", "launcher=mpirun", "communication.backend=mpi"], None),
        (["engine.name=torch"], None),
        (["communication.kind=shared_memory", "launcher=mpirun"], "RANK_MEETING"),
        (["communication.kind=shared_memory", "launcher=horovodrun"], "RANK_MEETING"),
        (["communication.kind=shared_memory"], None),
        (["communication.kind=none", "ranks_per_node=1", "launcher=srun"], None),
    ],
)
def test_ranks_are_served_where_their_launcher_does_not_and_mpi_does_not_connect_them(
    sets: list[str], served: str | None
) -> None:
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in sets])
    rendezvous = rendezvous_of(cluster.communication.kind)
    assert rendezvous.is_served(cluster) == bool(served)
    assert served is None or served in rendezvous.served


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("horovod", r"HOROVOD_GLOO_RENDEZVOUS_PORT=(\d+)\n"),
        ("shared_memory", r"RANK_MEETING=ranks-[0-9a-f]{32}()\n"),
        ("none", "()\n"),
    ],
)
def test_the_program_of_a_job_script_prints_one_line_and_serves_until_its_input_closes(kind: str, line: str) -> None:
    command = [sys.executable, "-I", "-m", "launch.start.rendezvous", "--kind", kind, "1", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found = re.fullmatch(line, program.stdout.readline())
        assert found
        assert not found[1] or _addresses(int(found[1])) == {"0.0.0.0"}
        assert program.communicate(timeout=60)[0] == ""
    assert program.returncode == 0
    assert not found[1] or not _addresses(int(found[1]))


@pytest.mark.parametrize(
    ("said", "nodes", "found"),
    [
        ("echo 10.0.0.5 fd00::1 192.168.1.2", 2, ["10.0.0.5", "192.168.1.2", HERE]),
        ("echo 10.0.0.5", 1, ["10.0.0.5", "127.0.0.1"]),
        ("echo 169.254.3.1 10.0.0.5 169.254.0.7", 2, ["10.0.0.5", HERE]),
        (f"echo 10.0.0.5 {ROUTED} 10.0.0.6", 2, [*filter(None, [ROUTED]), "10.0.0.5", "10.0.0.6", HERE]),
        (None, 2, [HERE]),  # Debian gives the name the address 127.0.1.1
        (None, 1, ["127.0.0.1"]),
    ],
)
def test_ranks_of_other_nodes_look_for_the_store_at_the_addresses_of_ipv4(
    said: str | None, nodes: int, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attended: list[Any] = []

    class Store:
        def __init__(self, *_: Any, master_listen_fd: int, **__: Any) -> None:
            with closing(socket.socket(fileno=master_listen_fd)) as listener:
                attended.append(str(listener.getsockname()[1]))

    monkeypatch.setitem(sys.modules, "torch", type("Module", (), {"__version__": "2.13.0+cpu"}))
    monkeypatch.setitem(sys.modules, "torch.distributed", type("Module", (), {"TCPStore": Store}))
    if said:
        write_program(tmp_path / "hostname", f'[ "$*" = -I ] && {said}')
    monkeypatch.setenv("PATH", str(tmp_path))
    with RENDEZVOUS["torch"].serve(nodes, 2) as variables:
        assert variables["MASTER_ADDR"].split(",") == found
        assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert attended == [variables["MASTER_PORT"]], "the block ends after the server"
