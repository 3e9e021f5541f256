"""Where the time of a step goes on the cores, kind by kind, beside the least that peak and memory bandwidth allow."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.errors import UserError
from configs.programs import Program
from train.bench.measure import BenchRow, Report, make_report, summarize
from train.bench.options import Bench, effort, generated_images, is_local_cpu, option

if TYPE_CHECKING:
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

_SINGLE = ("cluster.engine.forward_bulk_nodes=1", "cluster.engine.backward_bulk_nodes=1")
"""Every operator is queued by itself, so that the profiler tells them apart."""


@dataclass(frozen=True)
class RooflineOptions:
    """The options of ``bench roofline``."""

    overrides: Sequence[str] = option(
        "change a value of the cluster laptop", (), flag="--set", metavar="KEY=VALUE", action="append"
    )
    model: str = option("name of a network", "resnet50", metavar="M")
    image_sizes: Sequence[int] = option("sides of an image", (64, 224), metavar="PX", type=int, nargs="+")
    batch: int = option("images per rank", 16, metavar="N", type=int)
    rounds: int = effort("steps of each variant", quick=3, usual=7, thorough=20)


def measure(options: RooflineOptions, jobs: "Jobs", images: int = 256) -> Report:
    """See `train.bench.options.Bench`; ``images`` is the number of generated images."""
    from configs.load import load_both, load_cluster

    cluster = load_cluster("laptop", options.overrides)
    if not is_local_cpu(cluster) or cluster.world_size == 1:
        raise UserError(f"--set: got {cluster.world_size} ranks on {cluster.device}, allowed: two or more on the CPU")
    common = [
        f"model.name={options.model}",
        f"batch.global_size={cluster.world_size * options.batch}",
        *generated_images(f"bench-roofline-{images}", images),
        *options.overrides,
    ]
    recipes = {size: [*common, f"model.image_size={size}"] for size in options.image_sizes}
    loaded = [load_both("imagenet-b256", "laptop", overrides) for overrides in recipes.values()]
    jobs.pack(*loaded[0])
    rows: list[BenchRow] = []
    for size, overrides in recipes.items():
        for place, what in (((), "as a run queues a step"), (_SINGLE, "every operator by itself, recorded")):
            logger.info("%d px, %s", size, what)
            task = {"overrides": [*overrides, *place], "rounds": options.rounds, "operators": bool(place)}
            found = jobs.ranks(Program.ROOFLINE_OURS, task, overrides=(*options.overrides, *place)).samples
            rows += [row for name, samples in found.items() for row in summarize(f"{size} px, {name}", samples, 1)]
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


BENCH = Bench(
    "CPU time of a step by kind of operator, beside the least time that the cores allow",
    RooflineOptions,
    measure,
    needs="mxnet",
    only_here="it asks the cores of this machine",
)
