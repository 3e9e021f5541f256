"""The communicator between ranks of one machine, over memory that they share (``communication.kind: shared_memory``).

A sum over Horovod and Gloo goes through the loopback: four copies by the kernel for each byte, and a wait for each
message. Here a sum is two copies and an addition at the speed of the memory. The ranks' arrays stay where they are.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np

from configs.schema import Communication
from train.comm.communicator import Communicator, SingleProcess, first_collective
from train.comm.machine_ranks import Connections, meet
from train.comm.neighbours import flattened, is_dense
from train.comm.shared_sum import SharedBucket, SharedMemory
from train.comm.sum_thread import Done, SumThread
from train.rank.identity import Identity
from train.rank.startup import Ledger


class ArrayQueue(Protocol):
    """How a framework's arrays are handed to the thread that sums."""

    def start(
        self, name: str, arrays: Sequence[Any], priority: int, begin: Callable[[Sequence[np.ndarray], Done], None]
    ) -> None:
        """Call ``begin`` with flat views of the arrays as soon as they are computed; readers wait until it is done."""

    def complete(self) -> None:
        """See `Communicator.complete`."""


class TensorQueue:
    """The `ArrayQueue` of PyTorch's tensors on a CPU, which are computed when they are handed over."""

    def __init__(self) -> None:
        self._pending: list[Future[Exception | None]] = []

    def start(
        self, name: str, arrays: Sequence[Any], priority: int, begin: Callable[[Sequence[np.ndarray], Done], None]
    ) -> None:
        """Begin at once."""
        end: Future[Exception | None] = Future()
        self._pending.append(end)
        assert all(map(is_dense, arrays)), "a view of these has gaps"
        begin([flattened([array]).numpy() for array in arrays], end.set_result)

    def complete(self) -> None:
        """Wait for the sums on the host, since PyTorch's CPU has no queue that could."""
        while self._pending:
            if error := self._pending.pop().result():
                raise error


def connect(communication: Communication, identity: Identity, ledger: Ledger) -> Communicator:
    """Meet the other ranks and return this rank's communicator."""
    if identity.world_size == 1:
        return SingleProcess()
    with ledger.phase("communicator: init"):
        communicator = SharedMemoryCommunicator(identity, meet(identity, os.environ, communication.timeout_s))
    return first_collective(communicator, identity, ledger)


class SharedMemoryCommunicator(Communicator):
    """The verbs of `Communicator` between ranks of one machine.

    Args:
        identity: This rank.
        connections: The sockets and the memory.
    """

    def __init__(self, identity: Identity, connections: Connections) -> None:
        self._rank, self.world_size = identity.rank, identity.world_size
        peers, memory = connections
        self._memory = SharedMemory(memory, self._rank, self.world_size)
        self._thread = SumThread(peers)
        self._queue: ArrayQueue | None = None
        self._buckets: dict[str, SharedBucket] = {}

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue the sum of a bucket; its arrays have one type, and the same sizes in every call under this name."""
        (number_type,) = {_type_of(array) for array in arrays}
        bucket = self._bucket(name, [math.prod(array.shape) for array in arrays], number_type)
        self._queue_of(arrays[0]).start(name, arrays, priority, partial(self._thread.sum, self._thread.turn(), bucket))

    def _bucket(self, name: str, sizes: Sequence[int], number_type: str) -> SharedBucket:
        """Return the memory of a bucket; ranks ask for new ones in the same order."""
        if name not in self._buckets:
            self._buckets[name] = self._memory.bucket(sizes, number_type)
        return self._buckets[name]

    def complete(self) -> None:
        """Wait on the host under PyTorch; MXNet's engine orders every later reader after the sum."""
        if self._queue is not None:
            self._queue.complete()

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """Sum a table of zeros in which each rank has filled its row; tables of one size share a bucket."""
        table = np.zeros((self.world_size, len(row)), np.uint8)
        table[self._rank] = np.frombuffer(row, np.uint8)
        end: Future[Exception | None] = Future()
        bucket = self._bucket(f"rows of {len(row)}", [table.size], "uint8")
        self._thread.sum(self._thread.turn(), bucket, [table.reshape(-1)], end.set_result)
        if error := end.result():
            raise error
        return [each.tobytes() for each in table]

    def _queue_of(self, array: Any) -> ArrayQueue:
        """Return the queue of the framework that the array belongs to; a run has one framework."""
        if self._queue is None:
            if type(array).__module__.startswith("torch"):
                self._queue = TensorQueue()
            else:
                from train.engine.mxnet.host_operator import HostOperators  # noqa: PLC0415 (imports MXNet)

                self._queue = HostOperators()
        return self._queue


def _type_of(array: Any) -> str:
    """Return the name of an array's type: ``numpy.float32`` under MXNet and ``torch.float32`` give float32."""
    return str(array.dtype).rpartition(".")[2].rstrip("'>")
