"""Images a second from JPEG to batch by our DALI pipeline, MXNet's reader and Pillow, on the same records.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from configs.load import dump, load_both
from configs.programs import Program, command_of
from configs.schema import Cluster, Recipe
from logs.folder import RunFolder
from train.bench.launching import pack_dataset, run
from train.bench.measure import Report, interleave, make_report, summarize
from train.bench.readers import BATCH_SIZE, read_by_dali, read_by_mxnet, read_by_pillow

_TRAIN, _EVAL = 192, 16
_DRAINED_BATCHES = 8
"""More batches than any reader prepares in advance: a batch that was made before the clock started must not count."""


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
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
    folder = pack_dataset(recipe, cluster)
    announce = logging.getLogger(__name__).info
    training = []
    # The training runs come before the readers. Each run drops the data set from the page cache, and the kernel keeps
    # the pages that a reader of this process has mapped.
    for side in (64, 224):
        announce(f"training at {side} px")
        training += summarize(f"training, ResNet-50 at {side} px", [_train(recipe, cluster, side)])
    readers = {
        "DALI (ours)": read_by_dali(recipe, cluster, folder),
        "ImageRecordIter": read_by_mxnet(recipe, folder),
        "Pillow": read_by_pillow(recipe, folder),
    }
    rows = interleave(
        {name: _timing(reader, options.batches) for name, reader in readers.items()},
        n=options.rounds,
        warmup=1,
        reference="ImageRecordIter",
        compared=["images_per_core_s"],
        announce=announce,
    )
    notes = [
        f"{_TRAIN} generated JPEGs of about 500 x 400 px; random crop, resize to {options.image_size} px, flip, "
        f"normalise, batches of {BATCH_SIZE} in memory; one worker thread",
        "images_per_core_s: per second of processor time of all threads; images_per_s: per second of elapsed time",
        f"training: real runs of {cluster.world_size} ranks; input_wait_fraction as in summary.json of every run",
    ]
    return make_report([*rows, *training], notes)


def _timing(reader: Iterator[Any], batches: int) -> Callable[[], Mapping[str, float]]:
    """Return a function that takes a number of batches from an endless reader and returns the images a second."""

    def measure_once() -> Mapping[str, float]:
        for _ in itertools.islice(reader, _DRAINED_BATCHES):
            pass
        begin, begin_cpu = time.perf_counter(), time.process_time()
        count = 0
        for images in itertools.islice(reader, batches):
            count += images.shape[0]
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        return {"images_per_core_s": count / cpu_s, "images_per_s": count / seconds}

    return measure_once


def _train(recipe: Recipe, cluster: Cluster, image_size: int) -> Mapping[str, float]:
    """Train on the same images by the command that users give, and return figures of the run's summary."""
    shape = recipe.model.model_copy(update={"image_size": image_size})
    with tempfile.TemporaryDirectory(prefix="bench-input-") as name:
        config, folder = Path(name) / "config.yaml", Path(name) / "run"
        config.write_text(dump(recipe.model_copy(update={"model": shape}), cluster), encoding="utf-8")
        run(command_of(Program.TRAIN_VERB, "train", str(config), "--run-dir", str(folder)))
        summary = RunFolder(folder).summary()
    assert summary.images_per_s is not None
    assert summary.input_wait_fraction is not None
    return {"images_per_s": summary.images_per_s, "input_wait_fraction": summary.input_wait_fraction}
