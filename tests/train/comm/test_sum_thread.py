"""Threads of several ranks, here in one process, that sum over real sockets and shared memory."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import combinations
from typing import Any

import numpy as np
import pytest

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

    def sum(self, number: int, value: float, turn: int | None = None) -> Future[Any]:
        """Return the numbers in the arrays, when they are summed; ``turn`` is the next one if it is None."""
        arrays = [np.full(size, value, np.float32) for size in ((900, 100), (50,))[number]]
        result: Future[Any] = Future()

        def done(error: Exception | None) -> None:
            if error:
                result.set_exception(error)
            else:
                result.set_result({each for array in arrays for each in array.tolist()})

        self.thread.sum(self.thread.turn() if turn is None else turn, self.buckets[number], arrays, done)
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


def test_buckets_are_summed_in_turn_in_whatever_order_they_become_ready(ranks: list[Rank]) -> None:
    for step in range(3):
        for rank in ranks:
            assert [rank.thread.turn() for _ in range(2)] == [2 * step, 2 * step + 1]
        first, second = 2 * step, 2 * step + 1
        waiting = [ranks[0].sum(0, 1 + step, first), ranks[0].sum(1, 5, second), ranks[1].sum(1, 50, second)]
        waiting += [ranks[1].sum(0, 10, first), ranks[2].sum(1, 500, second)]
        assert not any(each.done() for each in waiting)
        waiting.append(ranks[2].sum(0, 100, first))
        totals = [each.result(10) for each in waiting]
        assert totals == [{111.0 + step}, {555.0}, {555.0}, {111.0 + step}, {555.0}, {111.0 + step}]


def test_a_rank_that_has_ended_is_named_at_once_to_all_who_wait_for_it(ranks: list[Rank]) -> None:
    waiting = [ranks[0].sum(0, 1), ranks[2].sum(0, 1), ranks[2].sum(1, 1)]
    ranks[1].leave()
    # The turn before it will never come, as that of an operator whose input has failed.
    for each in (*waiting, ranks[2].sum(0, 1, turn=7)):
        with pytest.raises(PeerLost, match="rank 1 has ended") as caught:
            each.result(10)
        assert is_second_hand(caught.value)


def test_a_rank_that_has_ended_after_its_part_of_a_sum_fails_nobody(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_added, may_add = threading.Event(), threading.Event()
    first, last = ranks[1].buckets[0].add, ranks[2].buckets[0].add
    monkeypatch.setattr(ranks[1].buckets[0], "add", lambda arrays: may_add.wait(10) and first(arrays))

    def add_and_tell(arrays: Any) -> None:
        last(arrays)
        has_added.set()

    monkeypatch.setattr(ranks[2].buckets[0], "add", add_and_tell)
    waiting = [rank.sum(0, 1) for rank in ranks]
    assert has_added.wait(10)
    ranks[2].leave()
    may_add.set()
    assert [each.result(10) for each in waiting[:2]] == [{3.0}, {3.0}]


def test_a_rank_that_ends_with_something_unread_is_named_too() -> None:
    own, its = socket.socketpair()
    file = create_memory()
    rank = Rank(0, 2, file)
    rank.sockets[1] = own
    rank.start()
    waiting = rank.sum(1, 1)
    assert its.recv(1)
    its.close()  # The kernel resets a connection on which something is unread.
    with pytest.raises(PeerLost, match="rank 1 has ended"):
        waiting.result(10)
    rank.leave()
    os.close(file)


def test_an_error_in_the_thread_reaches_whoever_waits(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(ranks[0].buckets[0], "give", fail)
    for each in (ranks[0].sum(0, 1), ranks[0].sum(1, 1)):
        with pytest.raises(MemoryError, match="no room"):
            each.result(10)


def test_threads_that_have_nothing_to_sum_sleep(ranks: list[Rank]) -> None:
    for future in [rank.sum(1, 1) for rank in ranks]:
        future.result(10)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1, "three threads that turn for ever take all of it"
