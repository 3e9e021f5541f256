"""How long an allreduce takes by size, number of ranks, route and library, beside the simulator's prediction.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from configs.errors import UserError
from configs.load import ROOT, load_cluster
from configs.programs import Program, command_of
from configs.registry import communicators_of
from configs.schema import Cluster
from train.bench.launching import is_local_cpu, run_ranks
from train.bench.measure import BenchRow, Figures, Report, make_report, ratio_rows, summarize, turns
from train.bench.samples import read_samples
from train.sim.collectives import SHARED_MEMORY, allreduce
from train.sim.constants import load_calibration
from train.sim.fit.this_machine import load_description, machine_of_description
from train.sim.hardware import machine_of_cluster
from train.sim.topology import Topology

logger = logging.getLogger(__name__)

_SAMPLES = 3
"""Samples of each size in a start, after one that does not count."""
_PREDICTED_AS = {"flat": "auto", "hierarchical": "hierarchical", "torus": "torus"}
"""Route in the cluster file -> algorithm of the simulator. NCCL chooses between ring and tree by itself."""
_LOCAL_RANKS = (2, 4)
_LIBRARIES = ("gloo", "mpi", "nccl")
"""What carries an allreduce by ``communication.backend``; another one is a ``communication.kind``."""
_OF_ONE_MACHINE = ("gloo", "shared_memory")


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    sizes = [_bytes_of(size) for size in options.sizes]
    base = load_cluster(options.cluster, options.overrides)
    counts = options.ranks or (_LOCAL_RANKS if is_local_cpu(base) else (base.world_size,))
    notes = [
        "allreduce_ms: of the slowest rank, from the moment at which all have met; float32; the median of a start",
        "bus_gb_per_s: bytes that each rank sends in a ring, 2 (n - 1) / n of the size, over the measured time",
        "predicted_ms: the collective alone; a small buffer also waits for the library's next cycle",
    ]
    ways = [
        _way(options, base, ranks, backend, route)
        for ranks in counts
        for backend in options.backends or _libraries(options, base)
        for route in options.routes or (base.communication.allreduce,)
    ]
    notes += dict.fromkeys(way.no_prediction for way in ways if way.no_prediction)
    measured: dict[_Way, dict[int, list[Figures]]] = {way: {size: [] for size in sizes} for way in ways}
    for number, way in turns(ways, options.rounds):
        logger.info("start %d of %d: %s", number + 1, options.rounds, way.title)
        for size, figures in way.start(options.cluster, sizes).items():
            measured[way][size].append(figures)
    rows: list[BenchRow] = []
    for ranks in counts:
        same = [way for way in ways if way.cluster.world_size == ranks]
        for size in sizes:
            titles = {f"{way.title}, {_in_words(size)}": measured[way][size] for way in same}
            rows += [row for title, samples in titles.items() for row in summarize(title, samples)]
            rows += ratio_rows(titles, next(iter(titles)), compared=["allreduce_ms"])
    return make_report(rows, notes)


@dataclass(frozen=True)
class _Way:
    """A number of ranks, a route and a library.

    Attributes:
        cluster: The cluster with these.
        overrides: What changes the cluster file so.
        topology: The cluster as the simulator sees it; None without a prediction.
        no_prediction: Why there is none, else empty.
    """

    cluster: Cluster = field(hash=False)
    overrides: tuple[str, ...]
    topology: Topology | None = field(hash=False)
    no_prediction: str

    @property
    def title(self) -> str:
        """Name the ranks, the route and the library."""
        communication = self.cluster.communication
        return f"{self.cluster.world_size} ranks, {communication.allreduce}, {communication.carrier}"

    def start(self, cluster_name: str, sizes: Sequence[int]) -> dict[int, Figures]:
        """Start the ranks once, and return the figures of each size: medians over a start's samples."""
        words = ["--cluster", cluster_name, *(word for each in self.overrides for word in ("--set", each))]
        command = command_of(Program.ALLREDUCE_OURS, *words, "--rounds", str(_SAMPLES), *map(str, sizes))
        samples = read_samples(run_ranks(command, cluster=cluster_name, overrides=self.overrides))
        return {
            size: self._figures(size, median(sample["allreduce_ms"] for sample in samples[str(size)])) for size in sizes
        }

    def _figures(self, size: int, allreduce_ms: float) -> Figures:
        ranks = self.cluster.world_size
        figures = {
            "allreduce_ms": allreduce_ms,
            "bus_gb_per_s": 2 * (ranks - 1) / ranks * size / allreduce_ms / 1e6,
        }
        if self.topology is None:
            return figures
        communication = self.cluster.communication
        is_shared = communication.kind == "shared_memory"
        algorithm = SHARED_MEMORY if is_shared else _PREDICTED_AS[communication.allreduce]
        predicted_ms = 1e3 * allreduce(algorithm, self.topology, size).time_s
        return {**figures, "predicted_ms": predicted_ms, "predicted / measured": predicted_ms / allreduce_ms}


def _way(options: argparse.Namespace, base: Cluster, ranks: int, backend: str, route: str) -> _Way:
    # A cluster file may name another kind, which has no backend.
    kind = communicators_of(base.engine.name)[0] if backend in _LIBRARIES else backend
    own = [f"cluster.communication.kind={kind}", f"cluster.communication.allreduce={route}"]
    own += [f"cluster.communication.backend={backend}"] if backend in _LIBRARIES else []
    if ranks != base.world_size:
        own += [f"cluster.num_nodes={base.num_nodes}", f"cluster.ranks_per_node={_per_node(base, ranks)}"]
    overrides = (*options.overrides, *own)
    cluster = load_cluster(options.cluster, overrides)
    return _Way(cluster, overrides, *_topology(cluster))


def _libraries(options: argparse.Namespace, base: Cluster) -> Sequence[str]:
    """Return what carries the sums by default; sums in shared memory have one route."""
    return _OF_ONE_MACHINE if is_local_cpu(base) and not options.routes else (base.communication.carrier,)


def _per_node(cluster: Cluster, ranks: int) -> int:
    if ranks % cluster.num_nodes:
        raise UserError(f"--ranks {ranks}: allowed: multiples of the cluster's {cluster.num_nodes} nodes")
    return ranks // cluster.num_nodes


def _topology(cluster: Cluster) -> tuple[Topology | None, str]:
    """Return the cluster as the simulator sees it; or None, and why there is no prediction."""
    try:
        if cluster.device == "cpu":
            description = load_description(ROOT / "runs" / "this-machine.yaml")
            return machine_of_description(description, cluster).topology(1.0), ""
        return machine_of_cluster(cluster).topology(load_calibration().constants.network_efficiency), ""
    except UserError as error:
        return None, f"no prediction: {error}"


def _bytes_of(text: str) -> int:
    """Return the bytes of a size such as 64K or 16M.

    Raises:
        UserError: The text is no size of at least 4 bytes.
    """
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in ("K", "M", "G") else (text, "")
    if not number.isdecimal() or int(number) * units[unit] < 4:  # noqa: PLR2004 (one number)
        raise UserError(f"--sizes {text}: allowed: 4 bytes or more, as 4096, 64K, 16M or 1G")
    return int(number) * units[unit] // 4 * 4


def _in_words(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size} bytes"
