"""Communicators over MXNet's parameter servers. The optimizer runs on the ranks in both modes.

MXNet is imported only when a rank connects.

Synchronous servers (``dist_sync``): a rank pushes its gradients and pulls their sum. A step equals a step with an
allreduce; only the path differs, since every byte goes through the servers.

Asynchronous servers (``dist_async``) hold the weights. A rank multiplies its own gradient by the number of ranks and
uses the product in place of the sum. The rank updates its weights, pushes an equal share of the update, and pulls the
weights, which other ranks have changed meanwhile; the server adds every push at once. Each update counts once, on
weights that may be some updates old. If no other rank changed the weights meanwhile and the optimizer is linear in the
gradient, the steps of p ranks add up to one synchronous step. Loss and learning rate of a step belong to the rank.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.schema import Communication
from train.comm.communicator import Communicator, WorldMismatch, first_collective
from train.rank.identity import Identity
from train.rank.startup import Ledger

_FEW = 1024
"""Arrays up to this many elements are copied to a fixed buffer before a push."""


def connect(communication: Communication, identity: Identity, ledger: Ledger) -> Communicator:
    """Connect to the parameter servers and return this rank's communicator."""
    with ledger.phase("communicator: import"):
        import mxnet as mx  # noqa: PLC0415 (seconds, in this thread)
    with ledger.phase("communicator: init"):
        store = mx.kv.create("dist_sync" if communication.is_synchronous else "dist_async")
    if store.num_workers != identity.world_size:
        raise WorldMismatch(identity, f"the parameter servers expect {store.num_workers} ranks")
    kind = SynchronousServer if communication.is_synchronous else AsynchronousServer
    return first_collective(kind(mx, store, identity.rank, identity.world_size), identity, ledger)


class SynchronousServer(Communicator):
    """The verbs of `Communicator` over a ``dist_sync`` store.

    Args:
        mx: The module ``mxnet``.
        store: The store, connected.
        rank: This rank, as the launcher counts; the store numbers ranks in order of arrival.
        world_size: Number of ranks.
    """

    def __init__(self, mx: Any, store: Any, rank: int, world_size: int) -> None:
        self._mx, self._store, self._rank, self.world_size = mx, store, rank, world_size
        self._sent: dict[str, list[Any]] = {}

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue a push of the arrays, then a pull of their sums into them.

        Every push under a name must come from the same array: only then does MXNet's engine order this push after the
        last pull. Gradients fulfil that. Small arrays may be new in each step, so they are copied to a fixed buffer.
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

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """Sum a table of zeros in which each rank has filled its row, a byte a cell.

        Servers sum in float32, whatever type they are sent (MXNet 1.9.1, measured: 2^40 + 1 came back as 2^40).
        """
        table = np.zeros((self.world_size, len(row)), np.float32)
        table[self._rank] = np.frombuffer(row, np.uint8)
        array = self._mx.nd.array(table)
        self.sum(f"{name}: {len(row)}", [array])
        return [each.tobytes() for each in array.asnumpy().astype(np.uint8)]


class AsynchronousServer(SynchronousServer):
    """The verbs of `Communicator` over a ``dist_async`` store; the module docstring defines a step."""

    keeps_ranks_equal = False

    def __init__(self, mx: Any, store: Any, rank: int, world_size: int) -> None:
        super().__init__(mx, store, rank, world_size)
        # With this optimizer the server adds every push; without one, it refuses to be asynchronous.
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, rescale_grad=-1.0))
        self._weights: list[Any] = []
        self._pulled: list[Any] = []
        self._sums = 0

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Multiply this rank's arrays by the number of ranks, in place of a sum."""
        for array in arrays:
            array[:] = array * self.world_size

    def publish(self, weights: Sequence[Any]) -> None:
        """Copy the weights, the same on every rank, to the servers, which hold them from now on."""
        self._weights = list(weights)
        self._pulled = [weight.copy() for weight in weights]
        self._store.init(self._keys, self._weights)

    def exchange(self, *, settled: bool = False) -> None:
        """Push this rank's share of its update, then pull the weights.

        Args:
            settled: Wait until every rank's updates have arrived, so that all ranks pull the same weights.
        """
        for key, weight, pulled in zip(self._keys, self._weights, self._pulled, strict=True):
            self._store.push(key, (weight - pulled) / self.world_size)
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

    def sum(self, name: str, arrays: Sequence[Any]) -> None:
        """Add to new zeros in each call, because a server that adds keeps everything it was sent."""
        self._sums += 1
        keys = [f"{name}.{self._sums}.{number}" for number in range(len(arrays))]
        self._store.init(keys, [self._mx.nd.zeros_like(array) for array in arrays])
        self._store.push(keys, list(arrays))
        self._wait_for_all()
        self._store.pull(keys, out=list(arrays))

    def _wait_for_all(self) -> None:
        self._mx.nd.waitall()  # a push is done when the server has answered
        self._store._barrier()
