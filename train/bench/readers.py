"""Three readers that make the same batches of the same records: our DALI pipeline, MXNet's own reader, and Pillow.

Batches are NumPy arrays in memory of their own.
"""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from configs.schema import Cluster, Crop, Recipe
from data.recordio import RecordFile, unpack_image

BATCH_SIZE = 16
_CROP_ATTEMPTS = 10
_FLIP_SHARE = 0.5


def read_by_dali(recipe: Recipe, cluster: Cluster, folder: Path) -> Iterator[Any]:
    """Yield batches of the pipeline that training uses, without end."""
    from data.input.packed import open_training  # noqa: PLC0415 (DALI)

    source = open_training(recipe, cluster.engine, folder, batch_size=BATCH_SIZE, rank=0, world_size=1, device_id=None)
    source.begin_epoch(1)
    while True:
        yield source.next_batch().images


def read_by_mxnet(recipe: Recipe, folder: Path) -> Iterator[Any]:
    """Yield batches of ``mx.io.ImageRecordIter`` without end, set as in Horovod's example but without colour jitter."""
    from train.bench.programs.textbook import open_records  # noqa: PLC0415 (MXNet)

    crop, side = recipe.data.crop, recipe.model.image_size
    assert crop.kind == "resized"
    constants = {
        f"{name}_{channel}": value
        for name, values in (("mean", recipe.data.mean), ("std", recipe.data.std))
        for channel, value in zip("rgb", values, strict=True)
    }
    reader = open_records(
        str(folder / "train"),
        side,
        BATCH_SIZE,
        shuffle=True,
        preprocess_threads=1,
        rand_mirror=recipe.data.flip,
        random_resized_crop=True,
        min_random_area=crop.area[0],
        max_random_area=crop.area[1],
        min_aspect_ratio=crop.aspect[0],
        max_aspect_ratio=crop.aspect[1],
        inter_method=1,
        **constants,
    )
    while True:
        for batch in reader:
            yield batch.data[0].asnumpy()
        reader.reset()


def read_by_pillow(recipe: Recipe, folder: Path) -> Iterator[Any]:
    """Yield batches without end, made in this thread as a loader in Python makes them.

    The loader decodes, crops and resizes, flips, and normalises.
    """
    from data.input.stream import index_rows  # noqa: PLC0415 (imports pydantic)

    crop, side = recipe.data.crop, recipe.model.image_size
    assert crop.kind == "resized"
    mean, std = (np.array(values, np.float32) for values in (recipe.data.mean, recipe.data.std))
    random = np.random.default_rng(recipe.run.seed)
    offsets = [offset for _, offset in index_rows(folder / "train.idx")]
    batch = np.empty((BATCH_SIZE, 3, side, side), np.float32)
    with RecordFile(folder / "train.rec") as records:
        while True:
            for row, offset in zip(batch, random.choice(offsets, BATCH_SIZE), strict=True):
                with Image.open(io.BytesIO(unpack_image(records.read(int(offset))).image)) as jpeg:
                    box = random_box(random, jpeg.size, crop)
                    image = jpeg.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=box)
                pixels = (np.asarray(image, np.float32) - mean) / std
                is_flipped = recipe.data.flip and random.random() < _FLIP_SHARE
                row[:] = (pixels[:, ::-1] if is_flipped else pixels).transpose(2, 0, 1)
            yield batch.copy()


def random_box(random: np.random.Generator, size: tuple[int, int], crop: Crop) -> tuple[float, float, float, float]:
    """Return a random window (left, top, right, bottom) in px, by the rule of random resized crops.

    If no attempt fits, the window is the whole image.
    """
    width, height = size
    for _ in range(_CROP_ATTEMPTS):
        area = width * height * random.uniform(*crop.area)
        aspect = math.exp(random.uniform(*np.log(crop.aspect)))
        wide, high = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            return left, top, left + wide, top + high
    return 0, 0, width, height
