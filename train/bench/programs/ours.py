"""One rank of ``bench peers``: trains as a run of this program does, from JPEGs to updated weights."""

from collections.abc import Sequence

from train.bench.bench_rank import open_rank
from train.bench.samples import run_task, write_samples


def main(overrides: Sequence[str], warmup: int, steps: int) -> None:
    """Measure the images/s of all ranks over ``steps`` steps, after ``warmup`` steps that do not count."""
    rank = open_rank(overrides, "imagenet-b256", reads_images=True)
    with rank.reading_steps() as queue:
        rank.time_s(lambda: queue(warmup))
        images_per_s = steps * rank.parts.plan.global_batch_size / rank.time_s(lambda: queue(steps))
        write_samples(rank.parts.identity, "ours", [{"images_per_s": images_per_s}])


if __name__ == "__main__":
    run_task(main)
