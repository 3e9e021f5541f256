"""The identity of this process: rank and world size from the launcher's variables, before any communicator exists.

This module alone *reads* the variables of horovodrun, torchrun, Open MPI, PMIx and Slurm; `configs.rank_variables` sets
this program's own. It imports nothing heavy, so a rank knows its number within microseconds of its start.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from configs.errors import UserError

_LAUNCHERS = (
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)  # fmt: skip
"""The innermost launcher comes first. The local launcher uses the names of horovodrun or torchrun."""


@dataclass(frozen=True)
class Identity:
    """One rank of a run.

    Attributes:
        rank: Number of the rank, from 0.
        world_size: Number of ranks.
        local_rank: Number of the rank on its node, from 0.
        local_size: Number of ranks on the node.
        host: Name of the node.
        launcher: What started the process: Horovod, torchrun, Open MPI, Slurm, devices, or none.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: str
    launcher: str


def read_identity(environment: Mapping[str, str]) -> Identity:
    """Return the identity that the environment variables describe; without a launcher, rank 0 of 1.

    Raises:
        UserError: The launcher's variables contradict each other.
    """
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    for launcher, *keys in _LAUNCHERS:
        # All of torchrun's: a shell may have a RANK of its own.
        if all(key in environment for key in (keys if launcher == "torchrun" else keys[:2])):
            found = (environment.get(key, default) for key, default in zip(keys, (0, 1, 0, 1), strict=True))
            rank, size, local_rank, local_size = map(int, found)
            if not 0 <= rank < size or local_rank < 0:
                raise UserError(f"{launcher} says rank {rank} of {size}; start the run through ./run.sh train")
            return Identity(rank, size, local_rank, max(local_size, local_rank + 1), host, launcher)
    return Identity(0, 1, 0, 1, host, "none")
