"""How long an allreduce takes by size, number of ranks, route and library."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from configs.arguments import option, whole_number
from configs.errors import UserError
from configs.registry import communicators_of
from train.bench.measure import COUNT, Bench, PlaceOptions, Report, effort, interleave, is_local_cpu
from train.bench.samples import Figures

if TYPE_CHECKING:
    from train.bench.launching import Jobs

_SAMPLES = 3
"""Samples of each size in a start, after one that does not count."""
_LOCAL_RANKS = (2, 4)
_LIBRARIES = ("gloo", "mpi", "nccl")
"""What carries an allreduce by ``communication.backend``; another one is a ``communication.kind``."""
_OF_ONE_MACHINE = ("gloo", "shared_memory")


@dataclass(frozen=True)
class AllreduceBench(PlaceOptions, Bench):
    """See `train.bench.measure.Bench`."""

    question = "time and bandwidth of an allreduce by size, ranks, route and library"

    sizes: Sequence[int] = option(
        "bytes of a rank's buffer", (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26), metavar="BYTES", nargs="+",
        type=whole_number(4, 1 << 40),
    )  # fmt: skip
    ranks: Sequence[int] | None = option(
        "ranks (default: 2 4 on this CPU, otherwise the cluster's)", metavar="N", type=COUNT, nargs="+"
    )
    routes: Sequence[str] | None = option(
        "flat, hierarchical or torus (default: the cluster's)", metavar="R", nargs="+"
    )
    backends: Sequence[str] | None = option(
        "gloo, mpi, nccl or shared_memory (default: gloo shared_memory on this CPU, otherwise the cluster's)",
        metavar="B",
        nargs="+",
    )
    rounds: int = effort("starts of each alternative", quick=1, usual=6, thorough=20)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.measure.Bench`."""
        sizes = list(dict.fromkeys(size // 4 * 4 for size in self.sizes))
        variants = self._variants()
        starts = {title: partial(self._start, jobs, *variant, sizes) for title, variant in variants.items()}
        first, *_ = starts
        rows = interleave(starts, n=self.rounds, reference=first, compared=[_time_of(size) for size in sizes])
        notes = [
            "allreduce_ms: of the slowest rank, from the moment at which all have met; float32; the median of a start",
            "bus_gb_per_s: bytes that each rank sends in a ring, 2 (n - 1) / n of the size, over the measured time",
            "a small buffer also waits for the library's next cycle",
        ]
        return Report(rows, notes)

    def _start(self, jobs: "Jobs", ranks: int, overrides: Sequence[str], sizes: Sequence[int]) -> Figures:
        """Start the ranks, and return the figures of every size."""
        task = {"cluster": self.cluster, "overrides": overrides, "rounds": _SAMPLES, "sizes": sizes}
        found = jobs.ranks("steps.allreduce", task).samples
        figures: dict[str, float] = {}
        for size in sizes:
            allreduce_ms = median(each["allreduce_ms"] for each in found[str(size)])
            bus_gb_per_s = 2 * (ranks - 1) / ranks * size / allreduce_ms / 1e6
            figures |= {_time_of(size): allreduce_ms, f"{size:,} bytes: bus_gb_per_s": bus_gb_per_s}
        return figures

    def _variants(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return every number of ranks over every library and route: title -> ranks, and what changes the cluster so.

        Raises:
            UserError: A number of ranks does not fit the cluster's nodes.
        """
        from configs.load import load_cluster

        base = load_cluster(self.cluster, self.overrides)
        is_local = is_local_cpu(base)
        # Sums in shared memory have one route.
        usual = _OF_ONE_MACHINE if is_local and not self.routes else (base.communication.carrier,)
        variants = {}
        for ranks, backend, route in itertools.product(
            self.ranks or (_LOCAL_RANKS if is_local else (base.world_size,)),
            self.backends or usual,
            self.routes or (base.communication.allreduce,),
        ):
            # A cluster file may name another kind, which has no backend.
            kind = communicators_of(base.engine.name)[0] if backend in _LIBRARIES else backend
            own = [f"cluster.communication.kind={kind}", f"cluster.communication.allreduce={route}"]
            own += [f"cluster.communication.backend={backend}"] if backend in _LIBRARIES else []
            if ranks % base.num_nodes:
                raise UserError(f"--ranks {ranks}: allowed: multiples of the cluster's {base.num_nodes} nodes")
            if ranks != base.world_size:
                own += [f"cluster.num_nodes={base.num_nodes}", f"cluster.ranks_per_node={ranks // base.num_nodes}"]
            overrides = (*self.overrides, *own)
            cluster = load_cluster(self.cluster, overrides)
            way = f"{cluster.communication.allreduce}, {cluster.communication.carrier}"
            variants[f"{cluster.world_size} ranks, {way}"] = cluster.world_size, overrides
        return variants


def _time_of(size: int) -> str:
    return f"{size:,} bytes: allreduce_ms"
