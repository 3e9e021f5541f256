"""One rank of ``bench peers``: trains as a run of this program does, from JPEGs to updated weights."""

import argparse
import sys
from collections.abc import Sequence

from train.bench.bench_rank import open_rank, steps_of
from train.bench.samples import write_samples


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the images/s of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--warmup", type=int, required=True, help="steps that do not count")
    parser.add_argument("--steps", type=int, required=True, help="steps that count, after those")
    options = parser.parse_args(arguments)
    import data.input.pipeline  # noqa: F401, PLC0415 (DALI before Horovod: `train.dataset` explains it)
    from train.dataset import images_of  # noqa: PLC0415

    rank = open_rank(options.overrides, "imagenet-b256")
    parts = rank.parts
    source = images_of(parts.recipe, parts.cluster, parts.plan, parts.identity).open_training(parts.engine)
    source.begin_epoch(1)
    steps = steps_of(rank, rank.parts.communicator, rank.parts.model.buckets, source)
    rank.time_s(lambda: steps(options.warmup))
    images_per_s = options.steps * rank.parts.plan.global_batch_size / rank.time_s(lambda: steps(options.steps))
    write_samples(rank.parts.identity, "ours", [{"images_per_s": images_per_s}])
    source.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
