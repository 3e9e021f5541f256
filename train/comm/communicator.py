"""What lets ranks act as one: a communicator, brought up in the background. The only importer of Horovod.

`HorovodCommunicator`, its null twin `SingleProcess` and those of `train.comm.kvstore` do the same verbs, so nobody asks
whether a run is distributed, or how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from configs.schema import Communication
from train.rank.identity import Identity
from train.rank.startup import Ledger

__all__ = [
    "Communicator", "Connect", "HorovodCommunicator", "SingleProcess", "WorldMismatch", "bring_up", "connector",
    "horovod_features",
]  # fmt: skip


class WorldMismatch(RuntimeError):
    """Horovod sees another world than the launcher made."""


class Communicator(Protocol):
    """Collective verbs; every rank calls each in the same order."""

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Sum each array over the ranks in place, fused; queues and returns at once."""

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Average each array over the ranks in place; queues and returns at once."""

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Sum integers over the ranks; waits."""

    def gather(self, name: str, value: int) -> list[int]:
        """Collect an unsigned 64-bit integer of every rank, by rank; waits."""

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """Collect what every rank has, however long, by rank; waits."""

    def publish(self, weights: Sequence[Any]) -> None:
        """Tell which arrays are the weights, before the first step; where they live elsewhere, that copies them."""

    def exchange(self, *, settled: bool = False) -> None:
        """Bring the weights up to date after an update, where they live elsewhere; ``settled``: on all ranks alike."""


class SingleProcess:
    """The world of one rank."""

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Leave the arrays: their sum over one rank is what they are."""

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Leave the arrays."""

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Return the values."""
        return list(values)

    def gather(self, name: str, value: int) -> list[int]:
        """Return the one value."""
        return [value]

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """Return the one content."""
        return [content]

    def publish(self, weights: Sequence[Any]) -> None:
        """Do nothing: the weights live here."""

    def exchange(self, *, settled: bool = False) -> None:
        """Do nothing, see `publish`."""


class HorovodCommunicator:
    """The same verbs over an initialised ``horovod.mxnet``."""

    def __init__(self, horovod: Any) -> None:
        self._horovod = horovod

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue one grouped allreduce; the engine starts it when all of ``arrays`` are ready."""
        self._horovod.grouped_allreduce_(list(arrays), op=self._horovod.Sum, name=name, priority=priority)

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Queue one grouped allreduce that divides by the number of ranks."""
        self._horovod.grouped_allreduce_(list(arrays), op=self._horovod.Average, name=name)

    def sum_integers(self, name: str, values: Sequence[int]) -> list[int]:
        """Sum as int64, exactly."""
        total = self._horovod.allreduce(_int64(values), op=self._horovod.Sum, name=name)
        return [int(value) for value in total.asnumpy()]

    def gather(self, name: str, value: int) -> list[int]:
        """Gather 64 bits of each rank as a signed integer, which is what MXNet has."""
        signed = value - (1 << 64) if value >= 1 << 63 else value
        everybody = self._horovod.allgather(_int64([signed]), name=name).asnumpy()
        return [int(each) % (1 << 64) for each in everybody]

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        """Gather the lengths, then all in one array; each gets a byte more, since an array of none cannot be sent."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        lengths = self.gather(f"{name}: lengths", len(content))
        own = mx.nd.array(np.frombuffer(content + b"\0", np.uint8), dtype="uint8")
        joined = self._horovod.allgather(own, name=name).asnumpy().tobytes()
        ends = np.cumsum([length + 1 for length in lengths]).tolist()
        return [joined[end - 1 - length : end - 1] for end, length in zip(ends, lengths, strict=True)]

    def publish(self, weights: Sequence[Any]) -> None:
        """Do nothing: ranks that see the same sums keep the same weights."""

    def exchange(self, *, settled: bool = False) -> None:
        """Do nothing, see `publish`."""


def _int64(values: Sequence[int]) -> Any:
    import mxnet as mx  # noqa: PLC0415 (slow: imported by the thread that needs it)

    return mx.nd.array(np.array(values, np.int64), dtype="int64")


Connect = Callable[[Identity, Ledger], Communicator]
"""Makes a rank's communicator; called in a thread of its own."""


class bring_up:  # noqa: N801 (reads as the verb it is)
    """Start the communicator in a thread; `wait` gives it.

    The launcher's ``identity`` says who this rank is, so nothing else waits for this. The thread imports the library,
    initialises it, checks its world against the launcher's and runs the first collective, which makes the
    connections that the first step would otherwise pay for.
    """

    def __init__(self, identity: Identity, ledger: Ledger, connect: Connect | None = None) -> None:
        self._result: Communicator | None = None
        self._failure: BaseException | None = None
        arguments = (identity, ledger, connect or _connect_horovod)
        self._thread = threading.Thread(target=self._run, args=arguments, name="communicator", daemon=True)
        self._thread.start()

    def _run(self, identity: Identity, ledger: Ledger, connect: Connect) -> None:
        try:
            self._result = connect(identity, ledger)
        except BaseException as failure:  # noqa: BLE001 (re-raised by wait, in the thread that can act on it)
            self._failure = failure

    def wait(self) -> Communicator:
        """Wait for the communicator; raises what bringing it up raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result


def connector(communication: Communication) -> Connect:
    """Choose how the ranks of several processes, or a single one, act as one."""
    if communication.kind == "horovod":
        return _connect_horovod
    if communication.kind == "none":
        return lambda _identity, _ledger: SingleProcess()
    assert communication.kind != "devices"
    is_synchronous = communication.kind == "parameter_server"
    return lambda identity, ledger: _connect_servers(identity, ledger, is_synchronous=is_synchronous)


def horovod_features() -> dict[str, bool]:
    """Say what Horovod was built with; raises ImportError where it was not."""
    import horovod.mxnet as hvd  # noqa: PLC0415 (imports MXNet)

    return {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": bool(hvd.nccl_built())}


def _connect_horovod(identity: Identity, ledger: Ledger) -> Communicator:
    if identity.launcher == "none":
        return SingleProcess()
    with ledger.phase("communicator: import"):
        import horovod.mxnet as hvd  # noqa: PLC0415 (imports MXNet: seconds, in this thread)
    with ledger.phase("communicator: init"):
        hvd.init()
    if (hvd.size(), hvd.rank()) != (identity.world_size, identity.rank):
        raise WorldMismatch(
            f"{identity.launcher} started rank {identity.rank} of {identity.world_size}, but Horovod sees rank "
            f"{hvd.rank()} of {hvd.size()}: this would train separate models. Start the run with ./run.sh train, or "
            f"set up Horovod with MPI (./run.sh setup) for mpirun and srun"
        )
    return _met(HorovodCommunicator(hvd), identity, ledger)


def _connect_servers(identity: Identity, ledger: Ledger, *, is_synchronous: bool) -> Communicator:
    with ledger.phase("communicator: import"):
        import mxnet as mx  # noqa: PLC0415 (seconds, in this thread)

        from train.comm.kvstore import AsynchronousServer, SynchronousServer  # noqa: PLC0415
    with ledger.phase("communicator: init"):
        store = mx.kv.create("dist_sync" if is_synchronous else "dist_async")
    if store.num_workers != identity.world_size:
        raise WorldMismatch(
            f"{identity.launcher} started {identity.world_size} ranks, but the parameter servers expect "
            f"{store.num_workers}. Start the run with ./run.sh train"
        )
    kind = SynchronousServer if is_synchronous else AsynchronousServer
    return _met(kind(store, identity.rank, identity.world_size), identity, ledger)


def _met(communicator: Communicator, identity: Identity, ledger: Ledger) -> Communicator:
    """Run the first collective."""
    with ledger.phase("communicator: first collective"):
        ranks = communicator.gather("first_collective", identity.rank)
    assert ranks == list(range(identity.world_size)), ranks
    return communicator
