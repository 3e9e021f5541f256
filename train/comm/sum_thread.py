"""The thread of a rank that sums buckets in shared memory, and its messages to the same threads of the other ranks.

A bucket is summed when it is ready on all ranks, in whatever order buckets become ready on each. The thread sleeps
until a message arrives or another thread of this rank hands it something. A message says that a rank has given or added
a bucket (see `train.comm.shared_sum`). The sockets of a rank that ends are closed, so nothing waits for a rank that is
gone. Imports no framework.
"""

import atexit
import os
import selectors
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from train.comm.machine_ranks import PeerLost
from train.comm.shared_sum import SharedBucket

Done = Callable[[Exception | None], None]
"""Called by the thread when a bucket is summed, or with the reason why it never will be."""

_MESSAGE = struct.Struct("<BI")
"""Kind of message, number of the bucket."""

_GIVEN, _ADDED = range(2)

_AT_ONCE = 1 << 16
"""Most bytes that are read from a socket at once."""

_LAST_MESSAGES_S = 10.0
"""Time to send what other ranks still wait for when this rank ends."""


class _Peer:
    """The connection to another rank.

    Attributes:
        rank: The other rank.
        is_gone: Whether the rank has ended.
    """

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        self.rank, self.connection = rank, connection
        self._unread = bytearray()
        self.is_gone = False

    def send(self, message: bytes) -> None:
        """Send a message.

        A rank has at most two messages on their way for each bucket, and a socket takes hundreds, so this does not wait
        for a rank that is busy.
        """
        # The end of the stream, after the last messages, tells that the rank is gone.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(message)

    def receive(self) -> list[tuple[int, int]]:
        """Return kind and bucket of the messages that have arrived."""
        try:
            while arrived := self.connection.recv(_AT_ONCE, socket.MSG_DONTWAIT):
                self._unread += arrived
            self.is_gone = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.is_gone = True
        whole = len(self._unread) // _MESSAGE.size * _MESSAGE.size
        messages = [*_MESSAGE.iter_unpack(self._unread[:whole])]
        del self._unread[:whole]
        return messages


@dataclass
class _Sum:
    """A bucket, and how far it is.

    Attributes:
        ready: Passes, arrays and callback, from the time when the bucket is ready on this rank until it is summed.
        given: Other ranks that have given their shares.
        added: Other ranks that have added their shards.
        has_added: Whether this rank has.
    """

    ready: tuple[SharedBucket, Sequence[np.ndarray], Done] | None = None
    given: set[int] = field(default_factory=set)
    added: set[int] = field(default_factory=set)
    has_added: bool = False


class SumThread:
    """Sums buckets with the threads of the other ranks.

    Args:
        peers: A connected socket for each other rank, by rank.
    """

    def __init__(self, peers: Mapping[int, socket.socket]) -> None:
        self._peers = [_Peer(rank, connection) for rank, connection in sorted(peers.items())]
        self._sums: defaultdict[int, _Sum] = defaultdict(_Sum)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._failure: Exception | None = None
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        for peer in self._peers:
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._run, name="sums", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def sum(self, number: int, bucket: SharedBucket, arrays: Sequence[np.ndarray], done: Done) -> None:
        """Sum a bucket that is ready on this rank; returns at once.

        Args:
            number: The number of the bucket, the same on all ranks.
            bucket: The passes over the memory.
            arrays: The bucket's arrays, flat; nobody may touch them until ``done`` is called.
            done: Called by the thread.
        """
        self._hand_over(partial(self._begin, number, (bucket, arrays, done)))

    def _hand_over(self, work: Callable[[], None]) -> None:
        self._inbox.append(work)
        os.eventfd_write(self._wake, 1)

    def _end(self) -> None:
        """End the thread when the others have got all that was for them."""
        self._hand_over(partial(setattr, self, "_is_ending", True))
        self._thread.join(_LAST_MESSAGES_S)

    def _run(self) -> None:
        while not self._is_ending:
            self._turn()

    def _turn(self) -> None:
        """Wait for messages or work, and do what they ask for; an error is told to whoever waits for a result."""
        try:
            self._answer()
        except Exception as error:  # noqa: BLE001 (a thread's boundary: nobody above could act on it)
            self._failure = error
            self._fail_what_cannot_be()

    def _answer(self) -> None:
        """Answer all messages and do one piece of work."""
        for key, _ in self._selector.select(0 if self._inbox else None):
            if key.data is None:
                os.eventfd_read(self._wake)
            else:
                self._receive(key.data)
        if self._inbox:
            self._inbox.popleft()()

    def _receive(self, peer: _Peer) -> None:
        for kind, number in peer.receive():
            (self._sums[number].given if kind == _GIVEN else self._sums[number].added).add(peer.rank)
            self._advance(number)
        if peer.is_gone:
            self._selector.unregister(peer.connection)
            self._fail_what_cannot_be()

    def _tell(self, kind: int, number: int) -> None:
        for peer in self._peers:
            if not peer.is_gone:
                peer.send(_MESSAGE.pack(kind, number))

    def _begin(self, number: int, ready: tuple[SharedBucket, Sequence[np.ndarray], Done]) -> None:
        one = self._sums[number]
        assert one.ready is None, f"bucket {number} is already being summed"
        one.ready = ready
        bucket, arrays, _ = ready
        bucket.give(arrays)
        self._tell(_GIVEN, number)
        self._advance(number)
        self._fail_what_cannot_be()

    def _advance(self, number: int) -> None:
        """Do what the messages about a bucket allow."""
        one = self._sums[number]
        if one.ready is None:
            return
        bucket, arrays, done = one.ready
        if not one.has_added and len(one.given) == len(self._peers):
            one.given.clear()  # From here on a rank may give the same bucket again, in the next step.
            bucket.add(arrays)
            one.has_added = True
            self._tell(_ADDED, number)
        if one.has_added and len(one.added) == len(self._peers):
            one.added.clear()
            bucket.take(arrays)
            one.ready, one.has_added = None, False
            done(None)

    def _fail_what_cannot_be(self) -> None:
        """Tell whoever waits for a rank that is gone, or for this thread after an error."""
        gone = [peer for peer in self._peers if peer.is_gone]
        if not gone and self._failure is None:
            return
        for one in self._sums.values():
            lost = next((peer.rank for peer in gone if peer.rank not in one.added), None)
            error = self._failure or (None if lost is None else PeerLost(f"rank {lost}"))
            if one.ready is not None and error is not None:
                (_, _, done), one.ready = one.ready, None
                done(error)
