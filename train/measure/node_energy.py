"""The energy that this rank's node uses while the ranks train, in a file of the run folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.schema import Cluster
from logs.disk import dispensable
from logs.energy import AttemptEnergy, read_attempts, write_attempts
from logs.energy_meter import EnergyMeter
from train.rank.identity import Identity


def node_meter(
    identity: Identity, cluster: Cluster, on_reading: Callable[[], object] = lambda: None
) -> EnergyMeter | None:
    """Return the meter of this rank's node; None unless this rank counts, which is the first one of the node.

    A rehearsal is not counted, because its ranks sleep; nor are GPUs that the cluster file forbids to ask.

    Args:
        identity: This rank.
        cluster: The cluster of the ranks.
        on_reading: See `EnergyMeter`.
    """
    gpus = cluster.ranks_per_node if cluster.device == "gpu" else 0
    counts = identity.local_rank == 0 and cluster.rehearsal is None and (not gpus or cluster.sample_gpus)
    return EnergyMeter(gpus, on_reading=on_reading) if counts else None


class NodeEnergy:
    """Count on the first rank of each node, and write every few seconds, so that what a killed attempt used is kept.

    Args:
        folder: The run folder.
        identity: This rank.
        cluster: The cluster of the run.
    """

    def __init__(self, folder: Path, identity: Identity, cluster: Cluster) -> None:
        self._folder, self._rank, self._host = folder, identity.rank, identity.host
        # The process that asks NVML starts while the ranks do.
        self._meter = node_meter(identity, cluster, self._write_quietly)
        self._starts: Mapping[str, Any] = {}
        self._from_step = 0
        self._earlier: Sequence[AttemptEnergy] = ()

    @contextmanager
    def counted(self, starts: Mapping[str, Any], from_step: int) -> Iterator[None]:
        """Count while the block runs.

        Args:
            starts: What `train.rank.startup.gather_starts` returned.
            from_step: The step at which the attempt begins.
        """
        if self._meter is None:
            yield
            return
        self._starts, self._from_step = starts, from_step
        self._earlier = read_attempts(self._folder, self._rank)
        self._meter.start()
        # What an earlier attempt used is not all, if this one cannot be counted.
        is_told = self._meter.joules.is_known or bool(self._earlier)
        try:
            yield
        finally:
            self._meter.stop()
            if is_told:
                with dispensable():
                    self._write()

    def _write_quietly(self) -> None:
        with suppress(UserError):  # The last writing tells of a disk in trouble.
            self._write()

    def _write(self) -> None:
        assert self._meter is not None
        nodes = len(set(self._starts["hosts"]))
        own = AttemptEnergy(self._starts["began"], nodes, self._host, self._meter.joules, self._from_step)
        write_attempts(self._folder, self._rank, [*self._earlier, own])
