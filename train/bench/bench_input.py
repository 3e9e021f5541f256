"""Images a second from JPEG to batch by our DALI pipeline, MXNet's reader and Pillow, on the same records."""

import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.programs import Program, command_of
from train.bench.measure import BenchRow, Report, interleave, make_report, summarize
from train.bench.options import Bench, PlaceOptions, effort, option
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

_TRAIN, _EVAL = 192, 16
_DRAINED_BATCHES = 8
"""More batches than any reader prepares in advance: a batch that was made before the clock started must not count."""
_SIDES = (64, 224)
"""Sides of an image of the training runs, px."""


@dataclass(frozen=True)
class InputOptions(PlaceOptions):
    """The options of ``bench input``."""

    rounds: int = effort("measured rounds", quick=1, usual=7, thorough=20)
    image_size: int = option("side of a crop", 224, metavar="PX", type=int)
    batches: int = option("batches of 16 images in a round", 24, metavar="N", type=int)
    steps: int = option("steps of each training run", 16, metavar="N", type=int)


def measure(options: InputOptions, jobs: "Jobs") -> Report:
    """See `train.bench.options.Bench`."""
    from configs.load import load_both
    from train.bench.readers import BATCH_SIZE, read_by_dali, read_by_mxnet, read_by_pillow

    overrides = [
        "data.name=bench-input",
        f"data.train_samples={_TRAIN}",
        f"data.eval_samples={_EVAL}",
        "model.num_classes=10",
        f"model.image_size={options.image_size}",
        "data.eval_resize=null",
        f"run.max_steps={options.steps}",
    ]
    recipe, cluster = load_both("imagenet-smoke", options.cluster, [*overrides, *options.overrides])
    folder = jobs.pack(recipe, cluster)
    # The training runs come before the readers. Each run drops the data set from the page cache, and the kernel keeps
    # the pages that a reader of this process has mapped.
    training: list[BenchRow] = []
    for side in _SIDES:
        logger.info("training at %d px", side)
        training += summarize(f"training, ResNet-50 at {side} px", [_train(recipe, cluster, side, jobs)])
    readers = {
        "DALI (ours)": read_by_dali(recipe, cluster, folder),
        "ImageRecordIter": read_by_mxnet(recipe, folder),
        "Pillow": read_by_pillow(recipe, folder),
    }
    rows = interleave(
        {name: reading(reader, options.batches) for name, reader in readers.items()},
        n=options.rounds,
        warmup=1,
        reference="ImageRecordIter",
        compared=["images_per_core_s"],
    )
    notes = [
        f"{_TRAIN} generated JPEGs of about 500 x 400 px; random crop, resize to {options.image_size} px, flip, "
        f"normalise, batches of {BATCH_SIZE} in memory; one worker thread",
        "images_per_core_s: per second of CPU time of all threads; images_per_s: per second of elapsed time",
        f"training: real runs of {cluster.world_size} ranks; input_wait_fraction as in summary.json of every run",
    ]
    return make_report([*rows, *training], notes)


BENCH = Bench(
    "images per second and core of the input pipeline, MXNet's reader and Pillow; share of a step spent on input",
    InputOptions,
    measure,
    needs="mxnet",
)


def reading(reader: Iterator[Any], batches: int) -> Callable[[], Figures]:
    """Return a function that takes a number of batches from an endless reader and returns the images a second."""

    def measure_once() -> Figures:
        for _ in itertools.islice(reader, _DRAINED_BATCHES):
            pass
        begin, begin_cpu = time.perf_counter(), time.process_time()
        count = sum(images.shape[0] for images in itertools.islice(reader, batches))
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        return {"images_per_core_s": count / cpu_s, "images_per_s": count / seconds}

    return measure_once


def _train(recipe: "Recipe", cluster: "Cluster", image_size: int, jobs: "Jobs") -> Figures:
    """Train on the same images by the command that users give, and return figures of the run's summary."""
    from configs.load import dump
    from logs.folder import RunFolder

    shape = recipe.model.model_copy(update={"image_size": image_size})
    with tempfile.TemporaryDirectory(prefix="bench-input-") as name:
        config, folder = Path(name) / "config.yaml", Path(name) / "run"
        config.write_text(dump(recipe.model_copy(update={"model": shape}), cluster), encoding="utf-8")
        jobs.run(command_of(Program.TRAIN_VERB, "train", str(config), "--run-dir", str(folder))).check()
        summary = RunFolder(folder).summary()
    assert summary.images_per_s is not None
    assert summary.input_wait_fraction is not None
    return {"images_per_s": summary.images_per_s, "input_wait_fraction": summary.input_wait_fraction}
