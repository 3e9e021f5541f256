"""Ranks of one machine meet: sockets between each two of them, and one memory."""

import os
import secrets
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from train.comm.communicator import RendezvousTimeout, WorldMismatch
from train.comm.machine_ranks import PeerLost, meet
from train.comm.shared_sum import create_memory
from train.rank.identity import Identity

GREETING = struct.Struct("<ii")
"""Rank and world size of a guest."""


def _reach(name: str) -> socket.socket:
    """Connect with rank 0 as soon as it listens."""
    while True:
        guest = socket.socket(socket.AF_UNIX)
        try:
            guest.connect(f"\0{name}")
            return guest
        except ConnectionRefusedError:
            guest.close()


def _identity(rank: int, world_size: int) -> Identity:
    return Identity(rank, world_size, rank, world_size, "local", "host")


def _held() -> list[str]:
    """Return the open sockets of this process, and the files without a name, as the memory of a meeting is."""
    links = (str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sorted(link for link in links if link.startswith(("socket:", "/memfd:")))


@pytest.fixture
def meeting() -> dict[str, str]:
    return {"RANK_MEETING": f"test-{secrets.token_hex(8)}"}


def test_each_two_ranks_get_a_socket_and_all_the_same_memory(meeting: dict[str, str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        met = list(pool.map(lambda rank: meet(_identity(rank, 4), meeting, 20), reversed(range(4))))[::-1]
    assert len({os.fstat(memory).st_ino for _, memory in met}) == 1
    for rank, (peers, _) in enumerate(met):
        assert set(peers) == {0, 1, 2, 3} - {rank}
        for other, connection in peers.items():
            connection.sendall(bytes([rank, other]))
    for rank, (peers, memory) in enumerate(met):
        assert {other: tuple(each.recv(2)) for other, each in peers.items()} == {
            other: (other, rank) for other in peers
        }
        for each in peers.values():
            each.close()
        os.close(memory)
    assert meeting["RANK_MEETING"] not in Path("/proc/net/unix").read_text(encoding="ascii")


@pytest.mark.medium
def test_two_processes_that_are_rank_0_do_not_meet(meeting: dict[str, str]) -> None:
    before = _held()
    with ThreadPoolExecutor(2) as pool:
        errors = [each.exception(10) for each in [pool.submit(meet, _identity(0, 2), meeting, 1) for _ in range(2)]]
    assert _held() == before
    assert any(isinstance(error, WorldMismatch) for error in errors)
    assert "another process is rank 0, too" in " ".join(map(str, errors))


def test_a_rank_that_ends_during_the_meeting_is_no_first_cause(meeting: dict[str, str]) -> None:
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + meeting["RANK_MEETING"])
        listener.listen(1)
        waiting = pool.submit(meet, _identity(1, 2), meeting, 10)
        listener.accept()[0].close()
        with pytest.raises(PeerLost, match="rank 0 has ended"):
            waiting.result(10)


@pytest.mark.medium
def test_a_rank_that_nobody_answers_waits_for_its_time_and_no_longer(meeting: dict[str, str]) -> None:
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + meeting["RANK_MEETING"])
        listener.listen(1)
        waiting = pool.submit(meet, _identity(1, 2), meeting, 1)
        silent, _ = listener.accept()
        with silent, pytest.raises(RendezvousTimeout):
            waiting.result(10)


@pytest.mark.medium
def test_a_guest_that_does_not_say_who_it_is_is_waited_for_no_longer_than_the_others(meeting: dict[str, str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, _identity(0, 2), meeting, 1)
        with _reach(meeting["RANK_MEETING"]), pytest.raises(RendezvousTimeout):
            waiting.result(10)


def test_ranks_that_lose_another_one_while_things_are_handed_out_keep_nothing(meeting: dict[str, str]) -> None:
    before = _held()
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(meet, _identity(0, 3), meeting, 10)
        for rank in (1, 2):  # Each has gone when the next one comes.
            with _reach(meeting["RANK_MEETING"]) as connection:
                connection.sendall(GREETING.pack(rank, 3))
        lost = [host.exception(10)]
        with socket.socket(socket.AF_UNIX) as listener, os.fdopen(create_memory()) as memory:
            listener.bind("\0" + meeting["RANK_MEETING"])
            listener.listen(1)
            guest = pool.submit(meet, _identity(1, 3), meeting, 10)
            with listener.accept()[0] as connection:
                assert connection.recv(GREETING.size) == GREETING.pack(1, 3)
                socket.send_fds(connection, [GREETING.pack(0, 3)], [memory.fileno()])
            lost.append(guest.exception(10))
    assert [type(error) for error in lost] == [PeerLost, PeerLost]
    assert _held() == before


def test_without_a_launcher_nobody_says_where_to_meet() -> None:
    with pytest.raises(WorldMismatch, match="no RANK_MEETING gives the rendezvous address"):
        meet(_identity(0, 2), {}, 1)


@pytest.mark.medium
def test_processes_of_another_user_are_not_let_in(meeting: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel says whose processes are at both ends: this test's own, who is now another user than it believes.
    own, before = os.geteuid(), _held()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    with ThreadPoolExecutor(2) as pool:
        host, guest = (pool.submit(meet, _identity(rank, 2), meeting, 1) for rank in (0, 1))
        assert isinstance(host.exception(10), RendezvousTimeout)
        with pytest.raises(WorldMismatch, match="a process of another user listens") as refused:
            guest.result(10)
        assert _held() == before, f"{refused.value} leaves something open"


@pytest.mark.parametrize(("rank", "size"), [(0, 3), (3, 3), (1, 4), (2, 2)])
def test_a_guest_whose_number_no_other_rank_of_this_run_has_is_refused(
    meeting: dict[str, str], rank: int, size: int
) -> None:
    before = _held()
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(meet, _identity(0, 3), meeting, 10)
        with _reach(meeting["RANK_MEETING"]) as guest:
            guest.sendall(GREETING.pack(rank, size))
            with pytest.raises(WorldMismatch, match=f"rank {rank} of {size} connected to the rendezvous"):
                host.result(10)
    assert _held() == before
