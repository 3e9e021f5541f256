"""The communicator of a rank: collective verbs, brought up in the background. Imports no framework.

All communicators implement the same verbs, so that no caller asks whether a run is distributed, or by which library.
`configs.registry.COMMUNICATORS` lists them by the names that a cluster file uses.
"""

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from configs.registry import COMMUNICATORS
from configs.schema import Communication
from train.rank.identity import Identity
from train.rank.startup import Ledger


class WorldMismatch(RuntimeError):
    """The ranks that meet are not those that the launcher started.

    Args:
        identity: This rank, as the launcher numbered it.
        found: What was found instead.
        remedy: What to do beside starting the run in another way.
    """

    def __init__(self, identity: Identity, found: str, remedy: str = "") -> None:
        super().__init__(
            f"{identity.launcher} started rank {identity.rank} of {identity.world_size}, but {found}. Start the run "
            f"with ./run.sh train{remedy}"
        )


class RendezvousTimeout(RuntimeError):
    """The other ranks did not connect in time; this error is never the first cause."""

    def __init__(self, timeout_s: int) -> None:
        super().__init__(f"the ranks did not connect within {timeout_s} s (communication.timeout_s)")


class Communicator(ABC):
    """Collective verbs; every rank calls each of them in the same order. Communicators derive from this class.

    Attributes:
        keeps_ranks_equal: Whether all ranks see the same sums, and so keep the same weights and optimizer's state.
        world_size: Number of ranks.
    """

    keeps_ranks_equal = True
    world_size = 1

    @abstractmethod
    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue the sum of each array over the ranks, in place; the arrays travel together."""

    def complete(self) -> None:
        """Make every queued sum visible to work that is queued from now on; must be called before the arrays are read.

        It waits on the host only where the framework's queue cannot wait for a sum. Under MXNet there is nothing to do:
        MXNet's engine orders every later reader after the sum.
        """

    def sum(self, name: str, arrays: Sequence[Any]) -> None:
        """Sum each array over the ranks, in place; work that is queued from now on sees the sums."""
        self.reduce(name, arrays)
        self.complete()

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Average each array over the ranks, in place; work that is queued from now on sees the means."""
        self.sum(name, arrays)
        for array in arrays:
            array[:] = array / self.world_size

    @abstractmethod
    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """Return every rank's bytes, by rank; waits. All ranks have equally many, and one or more."""

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """Return every rank's content, of any length, by rank; waits."""
        lengths = self.gather(f"{name}: lengths", len(content))
        rows = self.gather_rows(name, content.ljust(max(1, *lengths), b"\0"))
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def gather(self, name: str, value: int) -> list[int]:
        """Return every rank's unsigned 64-bit integer, by rank; waits."""
        return [int.from_bytes(row, "little") for row in self.gather_rows(name, value.to_bytes(8, "little"))]

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Return the sums of signed 64-bit integers over the ranks; waits."""
        rows = self.gather_rows(name, np.array(values, np.int64).tobytes())
        sums: list[int] = np.sum([np.frombuffer(row, np.int64) for row in rows], axis=0).tolist()
        return sums

    def swap(self, array: Any, partner: int | None) -> Any | None:
        """Send a vector to a rank that sends its own at the same time, and return that; on a GPU it is queued.

        All ranks call it together. A rank without a partner gets its own vector back, and every rank None if this kind
        has no messages between two ranks.
        """
        return None

    def publish(self, weights: Sequence[Any]) -> None:
        """Register the weight arrays, before the first step; parameter servers that hold the weights copy them.

        Elsewhere there is nothing to do: ranks that see the same sums keep the same weights.
        """

    def exchange(self, *, settled: bool = False) -> None:
        """Bring the weights up to date after an update, if servers hold them.

        Args:
            settled: Wait until all ranks have the same weights.
        """


class SingleProcess(Communicator):
    """The communicator of a world of one rank."""

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Leave the arrays as they are."""

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Leave the arrays as they are."""

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """Return the one row."""
        return [row]


Connect = Callable[[Identity, Ledger], Communicator]
"""Makes a rank's communicator; called in a thread of its own."""


def start_communicator(identity: Identity, ledger: Ledger, connect: Connect) -> Future[Communicator]:
    """Bring the communicator up in a thread of its own; the future's result is the communicator.

    Nothing else waits for the communicator, because the launcher's ``identity`` already has rank and world size. The
    thread imports the library, initialises it, compares its world with the launcher's, and runs the first collective,
    which makes the connections that the first step would otherwise pay for.

    Args:
        identity: This rank, as the launcher numbered it.
        ledger: Records the phases.
        connect: Makes the communicator, see `connector`.
    """
    result: Future[Communicator] = Future()

    def run() -> None:
        try:
            result.set_result(connect(identity, ledger))
        except BaseException as failure:  # noqa: BLE001 (raised by the future, in the thread that can act on it)
            result.set_exception(failure)

    threading.Thread(target=run, name="communicator", daemon=True).start()
    return result


def connector(communication: Communication) -> Connect:
    """Return the function that makes the communicator of ``communication.kind``: ``connect`` of the kind's module."""
    return partial(importlib.import_module(COMMUNICATORS[communication.kind].module).connect, communication)


def libraries_of(kind: str) -> Mapping[str, Callable[[], object]]:
    """Return the function that loads each library of a ``communication.kind``, by the library's name."""
    return getattr(importlib.import_module(COMMUNICATORS[kind].module), "LIBRARIES", {})


def connect(_communication: Communication, _identity: Identity, _ledger: Ledger) -> Communicator:
    """Return the communicator of a single rank (``communication.kind: none``)."""
    return SingleProcess()


def first_collective(communicator: Communicator, identity: Identity, ledger: Ledger) -> Communicator:
    """Run the first collective of a new communicator and return the communicator."""
    with ledger.phase("communicator: first collective"):
        ranks = communicator.gather("first_collective", identity.rank)
    assert ranks == list(range(identity.world_size)), ranks
    return communicator
