"""Threads of several ranks, here in one process, that sum and exchange over real sockets and shared memory."""

import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from configs.load import ROOT
from train.comm.machine_ranks import PeerLost
from train.comm.shared_sum import SharedBucket, SharedMemory, create_memory
from train.comm.sum_thread import SumThread
from train.rank.failure import is_second_hand


class Rank:
    """One rank: its thread, its sockets, and two buckets of 1,000 and 50 numbers."""

    def __init__(self, rank: int, world_size: int, file: int) -> None:
        self.rank, self.sockets = rank, dict[int, socket.socket]()
        memory = SharedMemory(file, rank, world_size)
        self.buckets: list[SharedBucket] = [memory.bucket([900, 100]), memory.bucket([50])]

    def start(self) -> None:
        self.thread = SumThread(self.sockets)

    def sum(self, number: int, value: float) -> Future[Any]:
        """Return the arrays, when they are summed."""
        arrays = [np.full(size, value, np.float32) for size in ((900, 100), (50,))[number]]
        result: Future[Any] = Future()

        def done(error: Exception | None) -> None:
            if error:
                result.set_exception(error)
            else:
                result.set_result({each for array in arrays for each in array.tolist()})

        self.thread.sum(number, self.buckets[number], arrays, done)
        return result

    def leave(self) -> None:
        """End the rank, as the kernel sees it."""
        self.thread._end()
        for each in self.sockets.values():
            each.close()


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    file = create_memory()
    ranks = [Rank(rank, 3, file) for rank in range(3)]
    for left, right in combinations(ranks, 2):
        left.sockets[right.rank], right.sockets[left.rank] = socket.socketpair()
    for rank in ranks:
        rank.start()
    yield ranks
    for rank in ranks:
        rank.leave()
    os.close(file)


def test_buckets_are_summed_in_whatever_order_they_become_ready(ranks: list[Rank]) -> None:
    for step in range(3):
        waiting = [ranks[0].sum(0, 1 + step), ranks[0].sum(1, 5), ranks[1].sum(1, 50), ranks[1].sum(0, 10)]
        assert not any(each.done() for each in waiting)
        waiting += [ranks[2].sum(0, 100), ranks[2].sum(1, 500)]
        totals = [each.result(10) for each in waiting]
        assert totals == [{111.0 + step}, {555.0}, {555.0}, {111.0 + step}, {111.0 + step}, {555.0}]


def test_contents_larger_than_a_socket_takes_at_once_reach_every_rank(ranks: list[Rank]) -> None:
    contents = [b"", bytes(range(256)) * 20_000, b"x" * 3_000_000]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            got = list(pool.map(lambda rank: rank.thread.exchange("all", contents[rank.rank]), ranks))
    for rank, others in enumerate(got):
        assert others == {number: contents[number] for number in range(3) if number != rank}


def test_a_rank_that_has_ended_is_named_at_once_to_all_who_wait_for_it(ranks: list[Rank]) -> None:
    waiting = [ranks[0].sum(0, 1), ranks[2].sum(1, 1)]
    ranks[1].leave()
    for each in (*waiting, ranks[2].sum(0, 1)):
        with pytest.raises(PeerLost, match="rank 1 has ended") as caught:
            each.result(10)
        assert is_second_hand(caught.value)
    with pytest.raises(PeerLost, match="rank 1 has ended"):
        ranks[0].thread.exchange("late", b"")


def test_what_a_rank_said_before_it_ended_still_counts(ranks: list[Rank]) -> None:
    with ThreadPoolExecutor(3) as pool:
        first, second = (pool.submit(ranks[rank].thread.exchange, "over", b"bye") for rank in (0, 1))
        pool.submit(ranks[2].thread.exchange, "over", b"bye").result(10)
        ranks[2].leave()
        assert first.result(10) == {1: b"bye", 2: b"bye"}
        assert second.result(10) == {0: b"bye", 2: b"bye"}


def test_a_rank_that_has_ended_after_its_part_of_a_sum_fails_nobody(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_add, bucket = threading.Event(), ranks[1].buckets[0]
    add = bucket.add
    monkeypatch.setattr(bucket, "add", lambda arrays: may_add.wait(10) and add(arrays))
    first, second, _ = [rank.sum(0, 1) for rank in ranks]
    while 2 not in ranks[0].thread._sums[0].added:
        assert not first.done()
    ranks[2].leave()
    while not ranks[0].thread._peers[1].is_gone:
        assert not first.done()
    may_add.set()
    assert (first.result(10), second.result(10)) == ({3.0}, {3.0})


def test_a_rank_that_ends_with_something_unread_is_named_too() -> None:
    own, its = socket.socketpair()
    thread = SumThread({1: own})
    with own, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.exchange, "over", b"unread")
        select.select([its], [], [], 10)
        its.close()  # The kernel resets a connection on which something is unread.
        with pytest.raises(PeerLost, match="rank 1 has ended"):
            waiting.result(10)
        thread._end()


def test_an_exchange_waits_for_ranks_that_live_although_one_has_ended_after_its_content(ranks: list[Rank]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks[0].thread.exchange, "over", b"a")
        ranks[2].thread._hand_over(partial(ranks[2].thread._begin_exchange, zlib.crc32(b"over"), b"c", Future()))
        ranks[2].leave()
        while not ranks[0].thread._peers[1].is_gone:
            assert not waiting.done()
        ranks[0].thread._hand_over(ranks[0].thread._fail_what_cannot_be)
        ranks[1].thread._hand_over(partial(ranks[1].thread._begin_exchange, zlib.crc32(b"over"), b"b", Future()))
        assert waiting.result(10) == {1: b"b", 2: b"c"}


def test_a_thread_sleeps_once_everything_is_sent(ranks: list[Rank]) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rank: rank.thread.exchange("all", bytes(3_000_000)), ranks))
    for rank in ranks:
        rank.thread._end()
        watched = [key.events for key in rank.thread._selector.get_map().values()]
        assert watched == [selectors.EVENT_READ] * 3, "a socket that takes more would wake the thread for ever"


_SAYS_IT_LATE = """
import socket, sys, threading, time
from train.comm.sum_thread import SumThread
peer = SumThread({1: socket.socket(fileno=int(sys.argv[1]))})
threading.Thread(target=peer.exchange, args=("over", bytes(5_000_000)), daemon=True).start()
while not peer._exchanges: time.sleep(0.001)
"""


@pytest.mark.ranks
def test_a_process_that_ends_still_sends_what_others_wait_for() -> None:
    own, its = socket.socketpair()
    with own, its:
        command = [sys.executable, "-c", _SAYS_IT_LATE, str(its.fileno())]
        with subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()]) as process:
            its.close()
            received = sum(iter(lambda: len(own.recv(1 << 16)), 0))
        assert (process.returncode, received) == (0, 9 + 5_000_000)


def test_ranks_that_exchange_different_things_are_told(ranks: list[Rank]) -> None:
    with ThreadPoolExecutor(3) as pool:
        names = ["weights", "weights", "losses"]
        waiting = [pool.submit(rank.thread.exchange, name, b"") for rank, name in zip(ranks, names, strict=True)]
        for each in waiting:
            assert "sum different buckets" in str(each.exception(10))


def test_an_error_in_the_thread_reaches_whoever_waits(ranks: list[Rank]) -> None:
    waiting = ranks[0].sum(0, 1)
    again = ranks[0].sum(0, 1)
    with pytest.raises(AssertionError, match="bucket 0 is already being summed"):
        waiting.result(10)
    assert not again.done()


def test_a_thread_that_was_woken_sleeps_again(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.thread._hand_over(lambda: None)
    deadline = time.monotonic() + 10
    for rank in ranks:
        while select.select([rank.thread._wake], [], [], 0)[0]:
            assert time.monotonic() < deadline, "the thread would turn for ever"
