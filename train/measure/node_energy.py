"""The energy that this rank's node uses while the ranks train, in a file of the run folder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.schema import Cluster
from logs.disk import dispensable
from logs.energy import AttemptEnergy, read_attempts, write_attempts
from logs.energy_meter import EnergyMeter
from train.rank.identity import Identity


def node_meter(identity: Identity, cluster: Cluster) -> EnergyMeter | None:
    """Return the meter of this rank's node; None unless this rank counts, which is the first one of the node.

    A rehearsal is not counted, because its ranks sleep; nor are GPUs that the cluster file forbids to ask. The process
    that asks NVML starts with the meter.
    """
    gpus = cluster.ranks_per_node if cluster.device == "gpu" else 0
    counts = identity.local_rank == 0 and cluster.rehearsal is None and (not gpus or cluster.sample_gpus)
    return EnergyMeter(gpus) if counts else None


@contextmanager
def counted(
    meter: EnergyMeter | None, folder: Path, identity: Identity, starts: Mapping[str, Any], from_step: int
) -> Iterator[None]:
    """Count while the block runs, and write every few seconds, so that what a killed attempt used is kept.

    Args:
        meter: What `node_meter` returned. If None, nothing is counted.
        folder: The run folder.
        identity: This rank.
        starts: What `train.rank.startup.gather_starts` returned.
        from_step: The step at which the attempt begins.
    """
    if meter is None:
        yield
        return
    earlier, nodes = read_attempts(folder, identity.rank), len(set(starts["hosts"]))

    def write() -> None:
        own = AttemptEnergy(starts["began"], nodes, identity.host, meter.joules, from_step)
        write_attempts(folder, identity.rank, [*earlier, own])

    def write_quietly() -> None:
        with suppress(UserError):  # The last writing tells of a disk in trouble.
            write()

    meter.start(write_quietly)
    # What an earlier attempt used is not all, if this one cannot be counted.
    is_told = meter.joules.is_known or bool(earlier)
    try:
        yield
    finally:
        meter.stop()
        if is_told:
            with dispensable():
                write()
