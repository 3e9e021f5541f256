"""The communicator over Horovod: the only importer of Horovod outside the benches."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.schema import Communication
from train.comm.communicator import Communicator, SingleProcess, WorldMismatch, first_collective
from train.rank.identity import Identity
from train.rank.startup import Ledger

_PR_SET_TIMERSLACK = 29
_LATENESS_NS_PER_MS = 50_000
"""By how much Horovod's thread may wake late: 5 % of a cycle, and the kernel's own 0.05 ms for cycles up to 1 ms. Open
MPI sleeps for 0.1 ms at a time while it waits for ranks that still start: 64 ranks on two cores took 1.34 s of
processor time each until they had met, and 0.86 s with cycles of 128 ms and this lateness (EPYC, 2026-11-27)."""


def connect(communication: Communication, identity: Identity, ledger: Ledger) -> Communicator:
    """Initialise Horovod and return this rank's communicator."""
    if identity.launcher == "none":
        return SingleProcess()
    with ledger.phase("communicator: import"):
        import horovod.mxnet as hvd  # noqa: PLC0415 (imports MXNet: seconds, in this thread)
    cycle_ms = max(1.0, communication.cycle_time_ms)
    # Horovod's thread inherits it from this one.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(int(cycle_ms * _LATENESS_NS_PER_MS)))
    with ledger.phase("communicator: init"):
        hvd.init()
    if (hvd.size(), hvd.rank()) != (identity.world_size, identity.rank):
        found = f"Horovod sees rank {hvd.rank()} of {hvd.size()}: this would train separate models"
        remedy = ", or set up Horovod with MPI (./run.sh setup) for mpirun and srun"
        raise WorldMismatch(identity, found, remedy)
    return first_collective(HorovodCommunicator(hvd), identity, ledger)


def horovod_features() -> dict[str, bool]:
    """Return which libraries Horovod was built with: ``gloo``, ``mpi``, ``nccl``.

    Raises:
        ImportError: Horovod was not built for MXNet.
    """
    import horovod.mxnet as hvd  # noqa: PLC0415 (imports MXNet)

    return {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": bool(hvd.nccl_built())}


LIBRARIES = {"Horovod": horovod_features}
"""What ``./run.sh doctor`` loads for this communicator."""


class HorovodCommunicator(Communicator):
    """The verbs of `Communicator` over an initialised ``horovod.mxnet``."""

    def __init__(self, horovod: Any) -> None:
        self._horovod, self.world_size = horovod, horovod.size()

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Queue one grouped allreduce; MXNet's engine starts it when all of ``arrays`` are ready."""
        self._horovod.grouped_allreduce_(list(arrays), op=self._horovod.Sum, name=name, priority=priority)

    def average(self, name: str, arrays: Sequence[Any]) -> None:
        """Queue one grouped allreduce that divides by the number of ranks."""
        self._horovod.grouped_allreduce_(list(arrays), op=self._horovod.Average, name=name)

    def swap(self, array: Any, partner: int | None) -> Any | None:
        """Send all of the vector to one rank, and nothing to the others."""
        to = self._horovod.rank() if partner is None else partner
        splits = [len(array) if rank == to else 0 for rank in range(self.world_size)]
        return self._horovod.alltoall(array, splits, name="swap")[0]

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """See `Communicator`."""
        import mxnet as mx  # noqa: PLC0415 (slow: imported by the thread that needs it)

        own = mx.nd.array(np.frombuffer(row, np.uint8), dtype="uint8")
        rows = self._horovod.allgather(own, name=name).asnumpy().reshape(self.world_size, -1)
        return [each.tobytes() for each in rows]
