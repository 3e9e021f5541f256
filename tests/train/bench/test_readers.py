"""The readers that are compared make the same kind of batch of the same images."""

import io
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from configs.load import load_both
from configs.schema import Cluster, Crop, Recipe
from data.recordio import RecordWriter, pack_image
from train.bench.readers import random_box, read_by_dali, read_by_mxnet, read_by_pillow

CROP = Crop(area=(0.1, 1.0), aspect=(0.5, 2.0))
_READERS: dict[str, Callable[[Recipe, Cluster, Path], Iterator[Any]]] = {
    "dali": read_by_dali,
    "mxnet": lambda recipe, _, folder: read_by_mxnet(recipe, folder),
    "pillow": lambda recipe, _, folder: read_by_pillow(recipe, folder),
}


def _grey(number: int) -> bytes:
    told = io.BytesIO()
    Image.new("RGB", (60, 40), (4 * number,) * 3).save(told, "JPEG", quality=100)
    return told.getvalue()


@pytest.mark.parametrize("name", ["dali", "mxnet", "pillow"])
def test_a_reader_shuffles_and_normalises(name: str, tmp_path: Path) -> None:
    """Every image is one level of grey, by which a crop of it is known."""
    with RecordWriter(tmp_path / "train.rec", tmp_path / "train.idx") as records:
        for number in range(64):
            records.write(pack_image(number, number, _grey(number)))
        records.finish()
    words = ["data.train_samples=64", "data.eval_samples=1", "data.shuffle_buffer=64", "data.eval_resize=null"]
    recipe, cluster = load_both("imagenet-smoke", "laptop", ["model.image_size=24", *words])
    batches = np.concatenate(list(itertools.islice(_READERS[name](recipe, cluster, tmp_path), 8)))
    pixels = batches * np.array(recipe.data.std)[:, None, None] + np.array(recipe.data.mean)[:, None, None]
    levels = pixels.mean(axis=(1, 2, 3)) / 4
    assert np.ptp(pixels, axis=(1, 2, 3)).max() < 3
    np.testing.assert_allclose(levels, levels.round(), atol=0.3)
    order = levels.round().astype(int).tolist()
    assert set(order) <= set(range(64))
    assert len(set(order)) > 40
    assert order[:64] != sorted(order[:64])
    assert order[:64] != order[64:]
    assert np.abs(np.diff(order[:16])).mean() > 4, "neighbours in the file are not neighbours in a batch"


@pytest.mark.parametrize(
    ("name", "flips"), [("dali", True), ("mxnet", True), ("pillow", True), ("mxnet", False), ("pillow", False)]
)
def test_a_reader_flips_left_and_right_only_if_the_recipe_does(name: str, flips: bool, tmp_path: Path) -> None:
    image, told = Image.new("RGB", (64, 64), (30, 30, 30)), io.BytesIO()
    image.paste((150, 150, 150), (0, 0, 64, 32))
    image.paste((250, 250, 250), (0, 0, 32, 32))
    image.save(told, "JPEG", quality=100)
    with RecordWriter(tmp_path / "train.rec", tmp_path / "train.idx") as records:
        for number in range(16):
            records.write(pack_image(number, number, told.getvalue()))
        records.finish()
    words = ["data.train_samples=16", "data.eval_samples=1", "data.shuffle_buffer=16", "data.eval_resize=null"]
    words += ["model.image_size=24", "data.crop.area=[0.9, 1.0]", f"data.flip={str(flips).lower()}"]
    recipe, cluster = load_both("imagenet-smoke", "laptop", words)
    pixels = np.concatenate(list(itertools.islice(_READERS[name](recipe, cluster, tmp_path), 4))).mean(axis=1)
    above, below = pixels[:, :8], pixels[:, -8:]
    assert (above.min(axis=(1, 2)) > below.max(axis=(1, 2))).all()
    is_flipped = above[:, :, 0].mean(axis=1) < above[:, :, -1].mean(axis=1)
    assert 16 < is_flipped.sum() < 48 if flips else not is_flipped.any()


class _Chosen:
    """Gives the chosen numbers, and notes between which ends each was asked for."""

    def __init__(self, *numbers: float) -> None:
        self._numbers, self.ends = iter(numbers), list[tuple[float, float]]()

    def uniform(self, low: float, high: float) -> float:
        self.ends.append((low, high))
        return next(self._numbers)


def test_a_window_has_the_drawn_area_and_aspect_and_lies_in_the_image() -> None:
    random: Any = _Chosen(0.5, math.log(2.0), 7.0, 3.0)
    left, top, right, bottom = random_box(random, (400, 200), CROP)
    assert (left, top) == (7.0, 3.0)
    # Half of 400 x 200 px, twice as wide as high.
    assert (right - left, bottom - top) == pytest.approx((math.sqrt(80_000), math.sqrt(20_000)))
    assert np.array(random.ends) == pytest.approx(
        np.array(
            [(0.1, 1.0), (math.log(0.5), math.log(2.0)), (0, 400 - math.sqrt(80_000)), (0, 200 - math.sqrt(20_000))]
        )
    )


def test_a_window_that_does_not_fit_is_drawn_again_and_the_whole_image_is_taken_in_the_end() -> None:
    # All of a square image, twice as wide as high or half as wide, is too wide or too high.
    too_wide, too_high = (1.0, math.log(2.0)), (1.0, math.log(0.5))
    random: Any = _Chosen(*too_wide, *too_high, 0.25, 0.0, 1.0, 2.0)
    assert random_box(random, (100, 100), CROP) == pytest.approx((1.0, 2.0, 51.0, 52.0))
    random = _Chosen(*too_wide * 10)
    assert random_box(random, (100, 80), CROP) == (0, 0, 100, 80)
    assert len(random.ends) == 2 * 10
