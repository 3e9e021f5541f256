"""Communicators over MXNet's key-value stores: parameter servers, and several devices of one process.

The optimizer is ours everywhere. With servers that wait (``dist_sync``) a rank pushes its gradients and pulls their
sum, so that a step is what an allreduce would make of it; only the path differs: every byte goes through the servers.

Servers that do not wait (``dist_async``) hold the weights. A rank takes its own gradient, times the number of ranks,
for the sum, makes its update, pushes an equal share of that update and pulls the weights, which others have changed
meanwhile; the server adds what arrives at once. Each update counts once, on weights that may be some updates old:
with a gradient that nothing changed meanwhile and an optimizer linear in it, p ranks' steps add up to the synchronous
one. Loss and learning rate of a step are the rank's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np

__all__ = ["AsynchronousServer", "DeviceGroup", "Devices", "PeerFailed", "SynchronousServer"]


_SHIFTS = (0, 16, 32, 48)

_FEW = 1024
"""Numbers in an array that is sent by way of a buffer."""


class PeerFailed(RuntimeError):
    """Another device of this process failed; it is no cause of its own."""


class SynchronousServer:
    """The verbs of `train.comm.communicator.Communicator` over a ``dist_sync`` store.

    Args:
        store: The store, connected.
        rank: This rank, as the launcher counts; the store's own numbers are in order of arrival.
        world_size: All ranks.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._sent: dict[str, list[Any]] = {}

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Push the arrays, pull their sums into them; the engine does both when they are ready.

        What is pushed under a name has to be the same array each time: only by that does the engine know that this push
        comes after the last pull. Gradients are; small arrays, which may be made anew for each step, go by a buffer.
        """
        keys = [f"{name}.{number}" for number in range(len(arrays))]
        if name not in self._sent:
            self._sent[name] = [array.copy() if array.size <= _FEW else array for array in arrays]
            self._store.init(keys, self._sent[name])
        sent = self._sent[name]
        apart = [pair for pair in zip(arrays, sent, strict=True) if pair[0] is not pair[1]]
        for array, buffer in apart:
            array.copyto(buffer)
        self._store.push(keys, sent, priority=priority)
        self._store.pull(keys, out=sent, priority=priority)
        for array, buffer in apart:
            buffer.copyto(array)

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Sum, then divide."""
        self._sum(name, arrays)
        for array in arrays:
            array[:] = array / self._world_size

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Sum in Python."""
        return [sum(column) for column in zip(*self._tabulate(name, values), strict=True)]

    def gather(self, name: str, value: int) -> list[int]:
        """List every rank's."""
        return [row[0] for row in self._tabulate(name, [value])]

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """Sum a table of float32 as `_tabulate` does: a rank's row holds its bytes, one a cell."""
        lengths = self.gather(f"{name}: lengths", len(content))
        table = np.zeros((self._world_size, max(lengths) + 1), np.float32)
        table[self._rank, : len(content)] = np.frombuffer(content, np.uint8)
        array = mx.nd.array(table)
        self._sum(f"{name}: {max(lengths)}", [array])
        rows = array.asnumpy().astype(np.uint8)
        return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]

    def _tabulate(self, name: str, values: Sequence[int]) -> list[list[int]]:
        """Give every rank's unsigned 64-bit integers, by rank.

        Servers sum in float32, whatever they are sent (MXNet 1.9.1, measured: 2^40 + 1 came back as 2^40). So each
        rank fills its own row of a table of zeros, 16 bits a cell, and the sum is the table.
        """
        table = np.zeros((self._world_size, len(values), 4), np.float32)
        table[self._rank] = [[value >> shift & 0xFFFF for shift in _SHIFTS] for value in values]
        array = mx.nd.array(table)
        self._sum(name, [array])
        return [
            [sum(int(part) << shift for part, shift in zip(cell, _SHIFTS, strict=True)) for cell in row]
            for row in array.asnumpy()
        ]

    def publish(self, weights: Sequence[Any]) -> None:
        """Do nothing: ranks that see the same sums keep the same weights."""

    def exchange(self, *, settled: bool = False) -> None:
        """Do nothing, see `publish`."""

    def _sum(self, name: str, arrays: Sequence[Any]) -> None:
        self.reduce(name, arrays)


class AsynchronousServer(SynchronousServer):
    """The same over a ``dist_async`` store: see the module for what a step means."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        super().__init__(store, rank, world_size)
        # With this "optimizer" the server adds what is pushed; without any, it refuses to be asynchronous.
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, rescale_grad=-1.0))
        self._weights: list[Any] = []
        self._pulled: list[Any] = []
        self._sums = 0

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Take this rank's own times the number of ranks for the sum."""
        for array in arrays:
            array[:] = array * self._world_size

    def publish(self, weights: Sequence[Any]) -> None:
        """Give the servers the weights, the same on every rank; from now on they are theirs."""
        self._weights = list(weights)
        self._pulled = [weight.copy() for weight in weights]
        self._store.init(self._keys, self._weights)

    def exchange(self, *, settled: bool = False) -> None:
        """Push this rank's share of its update, pull the weights.

        Args:
            settled: Wait until every rank's updates are in, so that all pull the same.
        """
        for key, weight, pulled in zip(self._keys, self._weights, self._pulled, strict=True):
            self._store.push(key, (weight - pulled) / self._world_size)
        if settled:
            self._wait_for_all()
        self._store.pull(self._keys, out=self._weights)
        for weight, pulled in zip(self._weights, self._pulled, strict=True):
            weight.copyto(pulled)
        if settled:
            self._wait_for_all()

    @property
    def _keys(self) -> list[str]:
        return [f"weights.{number}" for number in range(len(self._weights))]

    def _sum(self, name: str, arrays: Sequence[Any]) -> None:
        """Add to zeros of this call's own, since a server that adds never forgets."""
        self._sums += 1
        keys = [f"{name}.{self._sums}.{number}" for number in range(len(arrays))]
        self._store.init(keys, [mx.nd.zeros_like(array) for array in arrays])
        self._store.push(keys, list(arrays))
        self._wait_for_all()
        self._store.pull(keys, out=list(arrays))

    def _wait_for_all(self) -> None:
        mx.nd.waitall()  # a push is over when the server has answered
        self._store._barrier()


class DeviceGroup:
    """Where the threads of one process meet, one a device.

    Args:
        size: Devices.
        is_gpu: GPUs sum among themselves, where they can reach each other; CPU devices on the host.
    """

    def __init__(self, size: int, *, is_gpu: bool) -> None:
        self.size = size
        self._store = mx.kv.create("device" if is_gpu else "local")
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size
        self._result: Any = None
        self._declared: set[str] = set()

    def meet(self, rank: int, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for every device's value; one of them combines all, and each gets what comes of it.

        Raises:
            PeerFailed: A device will not come.
        """
        self._values[rank] = value
        try:
            if self._barrier.wait() == 0:
                self._result = combine(list(self._values))
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerFailed("another device of this process failed") from None
        except BaseException:
            self.abandon()
            raise
        return self._result

    def abandon(self) -> None:
        """Let nobody wait any more: a device has failed."""
        self._barrier.abort()

    def add_up(self, name: str, arrays: Sequence[Sequence[Any]], priority: int) -> None:
        """Queue the sum of each array over the devices, into all of them."""
        keys = [f"{name}.{number}" for number in range(len(arrays[0]))]
        by_key = [list(each) for each in zip(*arrays, strict=True)]
        if name not in self._declared:
            self._store.init(keys, [each[0] for each in by_key])
            self._declared.add(name)
        self._store.push(keys, by_key, priority=priority)
        self._store.pull(keys, out=by_key, priority=priority)


class Devices:
    """The verbs of `train.comm.communicator.Communicator` between the devices of one process.

    Args:
        group: What the devices share.
        rank: This device.
    """

    def __init__(self, group: DeviceGroup, rank: int) -> None:
        self._group, self._rank = group, rank

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue the sums once all devices have come: what they queue next must stand behind them."""
        self._group.meet(self._rank, arrays, lambda all_: self._group.add_up(name, all_, priority))

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Sum, then divide."""
        self.reduce(name, arrays)
        for array in arrays:
            array[:] = array / self._group.size

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Sum in Python."""
        total: list[int] = self._group.meet(
            self._rank, values, lambda rows: [sum(column) for column in zip(*rows, strict=True)]
        )
        return total

    def gather(self, name: str, value: int) -> list[int]:
        """List every device's."""
        values: list[int] = self._group.meet(self._rank, value, list)
        return values

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """List every device's."""
        contents: list[bytes] = self._group.meet(self._rank, content, list)
        return contents

    def publish(self, weights: Sequence[Any]) -> None:
        """Do nothing: devices that see the same sums keep the same weights."""

    def exchange(self, *, settled: bool = False) -> None:
        """Do nothing, see `publish`."""
