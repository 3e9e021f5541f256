"""The servers by which ranks meet listen where the ranks are, and nowhere else."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_cluster
from launch.start import key_value_server, meetings, rendezvous, store
from launch.start.key_value_server import serve_values

_LISTENS = "0A"


def _addresses(port: int) -> set[str]:
    """Return the addresses, in the kernel's hexadecimal form, on which a process listens at a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == _LISTENS and int(row[1].split(":")[1], 16) == port}


@pytest.mark.parametrize(
    ("port_of", "address"),
    [
        (lambda: rendezvous.local_ranks(2), "0100007F"),
        (lambda: rendezvous.serve(1, 2), "00000000"),
    ],
)  # fmt: skip
def test_the_rendezvous_of_one_machine_is_out_of_reach_of_others(port_of: Any, address: str) -> None:
    with port_of() as found:
        variables = found(0).variables if callable(found) else found
        assert _addresses(int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"])) == {address}


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    with closing(connection):
        return answer.status, answer.read()


def test_a_question_is_held_until_its_value_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_values("127.0.0.1") as port, ThreadPoolExecutor() as pool:
        asked = pool.submit(_ask, port, "GET", "/global/1")
        late = pool.submit(_ask, port, "GET", "/global/10")
        time.sleep(0.05)
        assert not asked.done()
        assert _ask(port, "PUT", "/global/1", bytes(100_000)) == (200, b"")
        assert asked.result() == (200, bytes(100_000))
        assert _ask(port, "GET", "/global/1") == (200, bytes(100_000))
        monkeypatch.setattr(key_value_server, "_HOLD_S", 0.01)
        assert _ask(port, "DELETE", "/global/1") == (200, b"")
        assert _ask(port, "GET", "/global/1")[0] == 404, "a rank that gives up must hear so"
        assert _ask(port, "POST", "/global/1")[0] == 400
        assert not late.done()
        assert _ask(port, "PUT", "/global/10", b"") == (200, b"")
        assert late.result() == (200, b"")


def test_a_request_of_one_word_is_answered_and_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_server, "_HOLD_S", 0.01)
    with serve_values("127.0.0.1") as port:
        for word, status in ((b"GET", b"404"), (b"X", b"400"), (b"PUT", b"200")):
            with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as rank:
                rank.sendall(word + b"\r\n\r\n")
                assert rank.recv(12) == b"HTTP/1.1 " + status


def test_a_request_of_more_than_a_mebibyte_is_broken_off() -> None:
    with serve_values("127.0.0.1") as port:
        assert _ask(port, "PUT", "/global/1", bytes((1 << 20) - 1000)) == (200, b"")
        with pytest.raises(OSError):
            _ask(port, "PUT", "/global/2", bytes(1 << 20))
        assert _ask(port, "DELETE", "/global/1") == (200, b"")


def test_a_rank_that_waits_for_a_value_hears_at_once_that_the_server_ends() -> None:
    with closing(socket.socket()) as rank:
        rank.settimeout(20)
        with serve_values("127.0.0.1") as port:
            rank.connect(("127.0.0.1", port))
            rank.sendall(b"GET /global/1 HTTP/1.1\r\n\r\n")
            assert _ask(port, "PUT", "/global/2", b"") == (200, b"")
        assert rank.recv(1) == b""


def test_the_rendezvous_tells_a_rank_of_one_machine_all_that_horovod_asks_for() -> None:
    with rendezvous.local_ranks(3) as start:
        found = start(2)
    assert found.descriptors == ()
    assert {**found.variables, "HOROVOD_GLOO_RENDEZVOUS_PORT": "port"} == {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "port",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": "node0",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "2",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }


def test_the_store_of_one_machine_is_opened_on_the_loopback_before_any_rank_starts() -> None:
    with store.local_ranks(3) as start:
        server, other = start(0), start(2)
        assert _addresses(int(server.variables["MASTER_PORT"])) == {"0100007F"}
    assert server.descriptors == (int(server.variables["RANK_STORE_FD"]),)
    assert other.descriptors == ()
    assert {**other.variables, "MASTER_PORT": "port"} == {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "port",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sets", "served"),
    [
        (["launcher=srun"], (True, False)),
        (["launcher=srun", "communication.backend=mpi"], (False, False)),
        (["launcher=horovodrun"], (False, False)),
        (["launcher=mpirun", "communication.backend=mpi"], (False, False)),
        (["engine.name=torch", "launcher=srun"], (False, True)),
        (["engine.name=torch", "launcher=mpirun"], (False, True)),
        (["engine.name=torch", "launcher=mpirun", "communication.backend=mpi"], (False, False)),
        (["engine.name=torch"], (False, False)),
    ],
)
def test_ranks_are_served_where_their_launcher_does_not_and_mpi_does_not_connect_them(
    sets: list[str], served: tuple[bool, bool]
) -> None:
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in sets])
    meeting = meetings.meeting_of(cluster.communication.kind)
    assert [meeting.is_served(cluster) and meeting is each for each in (rendezvous, store)] == list(served)
    assert not meetings.is_served(cluster)


def test_a_program_that_serves_prints_the_variables_in_one_line_and_then_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bytes] = []
    pipe = BytesIO()

    @contextmanager
    def serve(*numbers: int) -> Iterator[dict[str, str]]:
        yield {"A": str(numbers), "B": "2"}

    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: told.append(pipe.getvalue())))
    monkeypatch.setattr("sys.stdout", TextIOWrapper(pipe))
    assert meetings.serve_until_closed(serve, ["3", "4"]) == 0
    assert told == [b"A=(3, 4) B=2\n"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "program",
    [rendezvous, pytest.param(store, marks=pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch's store"))],
)
def test_a_program_of_a_job_script_reads_nodes_and_ranks_from_its_command_line(
    program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["program", "1", "2"])
    monkeypatch.setattr("sys.stdin", StringIO())
    assert program.main() == 0
    assert re.search(r"\b[A-Z_]+_PORT=\d+\b", capsys.readouterr().out)


def test_the_store_of_several_nodes_is_at_addresses_that_other_nodes_can_reach() -> None:
    assert "127.0.0.1" in store._addresses(1)
    assert not [address for address in store._addresses(2) if address.startswith("127.")]
    assert store._addresses(2)[-1] == socket.gethostname(), "Debian gives the name the address 127.0.1.1"
    assert store._addresses(2)[:-1] == store._addresses(1)[:-1]


def test_an_answered_question_is_forgotten() -> None:
    held, answers = key_value_server._Values(), []

    class Asking:
        def answer(self, *words: bytes) -> None:
            answers.append(words)

    held.put(b"/a", b"1")
    held.get(b"/a", Asking())  # type: ignore[arg-type]
    assert answers == [(b"200 OK", b"1")]
    assert not held.waiting
    held.put(b"/a", b"2")
    assert len(answers) == 1


def test_a_question_is_answered_or_given_up_once() -> None:
    held, answers = key_value_server._Values(), []

    class Asking:
        def answer(self, *words: bytes) -> None:
            answers.append(words)

    late: Any = Asking()
    held.waiting[b"/a"] = {late}
    held._give_up(b"/a", late)
    held.put(b"/a", b"1")
    assert answers == [(b"404 Not Found",)]
    early: Any = Asking()
    held.waiting[b"/b"] = {early}
    held.put(b"/b", b"2")
    held._give_up(b"/b", early)
    assert answers[1:] == [(b"200 OK", b"2")]


def test_the_store_of_other_nodes_is_served_on_every_address_until_the_ranks_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attended: list[int] = []

    def attend(descriptor: int, port: int, over: Event) -> None:
        with closing(socket.socket(fileno=descriptor)) as listener:
            attended.append(listener.getsockname()[1])
            over.wait(20)
            attended.append(port)

    monkeypatch.setattr(store, "_attend", attend)
    with store.serve(2, 4) as variables:
        port = int(variables["MASTER_PORT"])
        assert _addresses(port) == {"00000000"}
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        addresses = ",".join(store._addresses(2))
        assert variables == {
            "MASTER_ADDR": addresses, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"
        }  # fmt: skip
    assert attended == [port, port], "the block ends after the server"
    assert not _addresses(port)


@pytest.mark.parametrize(
    ("said", "nodes", "found"),
    [
        ("echo 10.0.0.5 fd00::1 192.168.1.2", 2, ["10.0.0.5", "192.168.1.2", socket.gethostname()]),
        ("echo 10.0.0.5", 1, ["10.0.0.5", "127.0.0.1"]),
        (None, 2, [socket.gethostname()]),
        (None, 1, ["127.0.0.1"]),
    ],
)
def test_ranks_look_for_the_store_at_the_addresses_of_ipv4(
    said: str | None, nodes: int, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said:
        (tmp_path / "hostname").write_text(f'#!/bin/sh\n[ "$*" = -I ] && {said}\n', encoding="utf-8")
        (tmp_path / "hostname").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert store._addresses(nodes) == found


class _Transport(asyncio.Transport):
    """Keeps what a connection does."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")


def test_a_request_in_pieces_is_obeyed_once_it_is_whole_and_nothing_may_follow() -> None:
    held, transport = key_value_server._Values(), _Transport()
    connection = key_value_server._Connection(held)
    connection.connection_made(transport)
    assert held.connections == {connection}
    for piece in (b"PUT /a HTTP/1.1\r\nCONTENT-length:  3\r\n", b"X: 9\r\n\r\nab"):
        connection.data_received(piece)
        assert transport.done == []
    connection.data_received(b"c")
    assert held.values == {b"/a": b"abc"}
    answer: list[bytes | str] = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "closed"]
    assert transport.done == answer
    connection.data_received(b"d")
    assert transport.done == [*answer, "aborted"]
    assert held.values == {b"/a": b"abc"}
    connection.connection_lost(None)
    assert held.connections == set()
