"""Where the time of a step goes on the cores, kind by kind, beside the least that peak and memory bandwidth allow.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import logging
from collections.abc import Sequence

from configs.errors import UserError
from configs.load import load_both, load_cluster
from configs.programs import Program, command_of
from train.bench.launching import is_local_cpu, pack_dataset, run_ranks
from train.bench.measure import Figures, Report, make_report, summarize
from train.bench.samples import read_samples

logger = logging.getLogger(__name__)

_RECIPE = "imagenet-b256"
_IMAGES = 256
_SINGLE = ("cluster.engine.forward_bulk_nodes=1", "cluster.engine.backward_bulk_nodes=1")
"""Every operator is queued by itself, so that the profiler tells them apart."""


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    cluster = load_cluster("laptop", options.overrides)
    if not is_local_cpu(cluster) or cluster.world_size == 1:
        raise UserError(f"--set: got {cluster.world_size} ranks on {cluster.device}, allowed: two or more on the CPU")
    common = [
        f"model.name={options.model}",
        f"batch.global_size={cluster.world_size * options.batch}",
        f"data.name=bench-roofline-{_IMAGES}",
        "data.source=generated",
        f"data.train_samples={_IMAGES}",
        "data.eval_samples=2",
        f"data.shuffle_buffer={_IMAGES}",
        *options.overrides,
    ]
    recipes = {size: [*common, f"model.image_size={size}"] for size in options.image_sizes}
    loaded = [load_both(_RECIPE, "laptop", overrides) for overrides in recipes.values()]
    pack_dataset(*loaded[0])
    rows = []
    for size, overrides in recipes.items():
        measured = _measure(overrides, options, f"{size} px")
        rows += [row for name, samples in measured.items() for row in summarize(f"{size} px, {name}", samples, 1)]
    notes = [
        f"{options.model}, batch {options.batch} a rank, {cluster.world_size} ranks; "
        "the figures are those of rank 0, a step",
        "alone: the other ranks wait; apart: all ranks compute, and nothing is summed; summed: as in a run, but with a "
        "batch in memory; read: as in a run, from JPEGs",
        "processor_ms is that of all threads of the rank: summed - apart is what the sums cost, read - summed is what "
        "decoding costs, and wall - processor is waiting",
        "operators are recorded one by one; floor: their operations at the rate of a product of matrices, or their "
        "bytes at the rate of a copy (both while all ranks measure), whichever takes longer; floor_share: of apart",
    ]
    return make_report(rows, notes)


def _measure(overrides: Sequence[str], options: argparse.Namespace, title: str) -> dict[str, list[Figures]]:
    """Return variant of a step, or kind of operator -> samples."""
    measured: dict[str, list[Figures]] = {}
    for place, what in (((), "as a run queues a step"), (_SINGLE, "every operator by itself, recorded")):
        logger.info("%s, %s", title, what)
        words = [word for override in (*overrides, *place) for word in ("--set", override)]
        words += ["--rounds", str(options.rounds), *(["--operators"] if place else [])]
        command = command_of(Program.ROOFLINE_OURS, *words)
        measured |= read_samples(run_ranks(command, overrides=(*options.overrides, *place)))
    return measured
