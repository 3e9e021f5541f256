"""The thread of a rank that sums buckets in shared memory, and the messages by which the ranks' threads wait for each.

All ranks sum their buckets in the same order, so a message says only that a rank is as far as the others: it has given
its shares of a bucket, or added its own shard (see `train.comm.shared_sum`). The kernel closes the sockets of a rank
that ends, so nothing waits for a rank that is gone. Imports no framework.
"""

import atexit
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count

import numpy as np

from train.comm.machine_ranks import PeerLost
from train.comm.shared_sum import SharedBucket

Done = Callable[[Exception | None], None]
"""Called by the thread when a bucket is summed, or with the reason why it never will be."""

_LOOK_MS = 100
"""A thread that waits for other ranks looks so often whether its own rank ends."""

_END_S = 10.0
"""Time for the thread to end what it is at when its rank ends."""


class SumThread:
    """Sums buckets with the threads of the other ranks, one after another.

    Args:
        peers: A connected socket for each other rank, by rank.
    """

    def __init__(self, peers: Mapping[int, socket.socket]) -> None:
        self._peers = peers
        for connection in peers.values():
            connection.settimeout(None)
        self._turns = count()
        self._ready: dict[int, tuple[SharedBucket, Sequence[np.ndarray], Done]] = {}
        self._changed = threading.Condition()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="sums", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def turn(self) -> int:
        """Return the number of the next sum; all ranks ask in the same order, in which the sums are made."""
        return next(self._turns)

    def sum(self, turn: int, bucket: SharedBucket, arrays: Sequence[np.ndarray], done: Done) -> None:
        """Sum a bucket that is ready on this rank, when all sums before it are made; returns at once.

        Args:
            turn: The number of the sum.
            bucket: The passes over the memory.
            arrays: The bucket's arrays, flat; nobody may touch them until ``done`` is called.
            done: Called by the thread.
        """
        with self._changed:
            self._ready[turn] = bucket, arrays, done
            self._changed.notify()

    def _end(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_END_S)

    def _run(self) -> None:
        failure: Exception | None = None
        for turn in count():
            # After a failure, whatever comes next fails: what is before it may never be ready.
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending or turn in self._ready or (failure and self._ready))  # noqa: B023
                if self._is_ending:
                    return
                bucket, arrays, done = self._ready.pop(turn if failure is None else min(self._ready))
            try:
                if failure is None:
                    self._sum(bucket, arrays)
            except Exception as error:  # noqa: BLE001 (a thread's boundary: whoever waits can act on it)
                failure = error
            done(failure)

    def _sum(self, bucket: SharedBucket, arrays: Sequence[np.ndarray]) -> None:
        bucket.give(arrays)
        self._meet()
        bucket.add(arrays)
        self._meet()
        bucket.take(arrays)

    def _meet(self) -> None:
        """Wait until all ranks are as far as this one.

        Raises:
            PeerLost: A rank has ended before it was.
        """
        awaited, poll = {connection.fileno(): rank for rank, connection in self._peers.items()}, select.poll()
        for descriptor, rank in awaited.items():
            poll.register(descriptor, select.POLLIN)
            with suppress(BrokenPipeError, ConnectionResetError):  # The end of the stream tells that the rank is gone.
                self._peers[rank].sendall(b"\0")
        while awaited:
            if self._is_ending:
                raise PeerLost("this rank")
            for descriptor, _ in poll.poll(_LOOK_MS):
                rank = awaited.pop(descriptor)
                poll.unregister(descriptor)
                if not _received(self._peers[rank]):
                    raise PeerLost(f"rank {rank}")


def _received(connection: socket.socket) -> bytes:
    """Return the message that has arrived; empty at the end of the stream."""
    with suppress(ConnectionResetError):  # The kernel resets a connection on which something is unread.
        return connection.recv(1)
    return b""
