"""How long an allreduce takes by size, number of ranks, route and library, beside the simulator's prediction.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import logging

from configs.errors import UserError
from configs.load import ROOT, load_cluster
from configs.programs import Program, command_of
from configs.schema import Cluster
from train.bench.launching import is_local_cpu, run_ranks
from train.bench.measure import BenchRow, Report, make_report, summarize
from train.bench.samples import read_samples
from train.sim.collectives import allreduce
from train.sim.constants import load_calibration
from train.sim.fit.this_machine import load_description, machine_of_description
from train.sim.hardware import machine_of_cluster
from train.sim.topology import Topology

__all__ = ["measure"]

logger = logging.getLogger(__name__)

_WARMUP = 1
_PREDICTED_AS = {"flat": "auto", "hierarchical": "hierarchical", "torus": "torus"}
"""Route in the cluster file -> algorithm of the simulator. NCCL chooses between ring and tree by itself."""
_LOCAL_RANKS = (2, 4)


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    sizes = [_bytes_of(size) for size in options.sizes]
    base = load_cluster(options.cluster, options.overrides)
    counts = options.ranks or (_LOCAL_RANKS if is_local_cpu(base) else (base.world_size,))
    rows: list[BenchRow] = []
    notes = [
        "allreduce_ms: of the slowest rank, from the moment at which all ranks have met; float32, summed",
        "bus_gb_per_s: bytes that each rank sends in a ring, 2 (n - 1) / n of the size, over the measured time",
        "predicted_ms: the collective alone; a small buffer also waits for the library's next cycle",
    ]
    for ranks in counts:
        for backend in options.backends or (base.communication.backend,):
            for route in options.routes or (base.communication.allreduce,):
                own = [f"cluster.communication.backend={backend}", f"cluster.communication.allreduce={route}"]
                if ranks != base.world_size:
                    own += [f"cluster.num_nodes={base.num_nodes}", f"cluster.ranks_per_node={_per_node(base, ranks)}"]
                overrides = [*options.overrides, *own]
                cluster = load_cluster(options.cluster, overrides)
                topology, reason = _topology(cluster)
                if reason and reason not in notes:
                    notes.append(reason)
                rows += _rows(options, cluster, overrides, sizes, topology)
    return make_report(rows, notes)


def _per_node(cluster: Cluster, ranks: int) -> int:
    if ranks % cluster.num_nodes:
        raise UserError(f"--ranks {ranks}: allowed: multiples of the cluster's {cluster.num_nodes} nodes")
    return ranks // cluster.num_nodes


def _rows(
    options: argparse.Namespace, cluster: Cluster, overrides: list[str], sizes: list[int], topology: Topology | None
) -> list[BenchRow]:
    """Measure all sizes with one set of ranks, and return the rows."""
    ranks, way = cluster.world_size, f"{cluster.communication.allreduce}, {cluster.communication.backend}"
    logger.info("%d ranks, %s", ranks, way)
    words = ["--cluster", options.cluster, *(word for each in overrides for word in ("--set", each))]
    command = command_of(Program.ALLREDUCE_OURS, *words, "--rounds", str(options.rounds), *map(str, sizes))
    samples = read_samples(run_ranks(command, cluster=options.cluster, overrides=overrides))
    rows: list[BenchRow] = []
    for size in sizes:
        moved = 2 * (ranks - 1) / ranks * size
        rounds = [
            {"allreduce_ms": ms, "bus_gb_per_s": moved / ms / 1e6}
            for ms in (float(sample["allreduce_ms"]) for sample in samples[str(size)])
        ]
        if topology is not None:
            predicted_ms = 1e3 * allreduce(_PREDICTED_AS[cluster.communication.allreduce], topology, size).time_s
            rounds = [
                {**each, "predicted_ms": predicted_ms, "predicted / measured": predicted_ms / each["allreduce_ms"]}
                for each in rounds
            ]
        rows += summarize(f"{ranks} ranks, {way}, {_in_words(size)}", rounds, _WARMUP)
    return rows


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
