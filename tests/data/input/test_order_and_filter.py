"""How far shuffling moves images, and which filter resizes them: what smooth images and a changed order do not show."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.input.batches import TrainingSource
from tests.data.input.test_packed import evaluation, jpeg, recipe_for, take, training, write_split

COUNT = 300
UNIFORM = (COUNT**2 - 1) / (3 * COUNT)
"""Mean distance of an image from its place after a uniform shuffle; its standard deviation is 3.7."""


def _passes(source: TrainingSource, number: int) -> list[np.ndarray]:
    """Return the order of each of the first passes over all images."""
    source.begin_epoch(1)
    return [np.array(take(source, COUNT // 4)) for _ in range(number)]


def _moved(order: np.ndarray, since: np.ndarray | None = None) -> np.ndarray:
    """Return by how many places each image comes later than in another order, by default that of the file."""
    places = np.argsort(order) - (np.arange(COUNT) if since is None else np.argsort(since))
    return np.asarray(places)


@pytest.mark.medium
def test_a_buffer_that_holds_the_shard_shuffles_uniformly_and_anew_each_pass(tmp_path: Path) -> None:
    write_split(tmp_path, "train", COUNT)
    first, second, third = _passes(training(tmp_path, recipe_for(COUNT)), 3)
    for moved in (_moved(first), _moved(second), _moved(second, first), _moved(third, second)):
        assert np.abs(moved).mean() == pytest.approx(UNIFORM, abs=4 * 3.7)
        assert abs(moved.mean()) < 1e-9
    other_seed, *_ = _passes(training(tmp_path, recipe_for(COUNT, overrides=["run.seed=2"])), 1)
    assert np.abs(_moved(other_seed, first)).mean() == pytest.approx(UNIFORM, abs=4 * 3.7)


@pytest.mark.parametrize("buffer", [10, 40])
def test_a_smaller_buffer_moves_images_by_about_its_length(tmp_path: Path, buffer: int) -> None:
    write_split(tmp_path, "train", COUNT)
    (order,) = _passes(training(tmp_path, recipe_for(COUNT, overrides=[f"data.shuffle_buffer={buffer}"])), 1)
    moved = _moved(order)
    assert moved.min() >= -buffer, "no image comes before it has been read"
    assert buffer / 2 < np.abs(moved).mean() < 1.5 * buffer


BOARD = np.where(np.indices((60, 60)).sum(axis=0)[..., None] % 2, 230, 20).repeat(3, axis=-1).astype(np.uint8)
"""A checkerboard of single pixels, which each filter turns into another picture."""


def _linear(image: np.ndarray, side: int) -> np.ndarray:
    """Resize a square image by linear interpolation between the pixels nearest to each point, without a low-pass."""
    scale = len(image) / side
    at = np.clip((np.arange(side) + 0.5) * scale - 0.5, 0, len(image) - 1)
    low = np.floor(at).astype(int)
    high, share = np.minimum(low + 1, len(image) - 1), at - low
    rows = image[low] * (1 - share)[:, None, None] + image[high] * share[:, None, None]
    return np.asarray(rows[:, low] * (1 - share)[None, :, None] + rows[:, high] * share[None, :, None])


SIDE = 37
PATHS = {
    "evaluation": f"data.eval_resize={SIDE}",
    "training, whole": "data.crop={kind: none}",
    "training, shifted": "data.crop={kind: shift, padding: 0}",
    "training, cropped": "data.crop={kind: resized, area: [1, 1], aspect: [1, 1]}",
}


def _first_image(folder: Path, path: str, *more: str) -> np.ndarray:
    """Return the checkerboard as it comes along a path, [C, H, W]."""
    recipe = recipe_for(4, 1, overrides=[f"model.image_size={SIDE}", "data.flip=false", PATHS[path], *more])
    if path == "evaluation":
        return np.asarray(next(iter(evaluation(folder, recipe, batch=1).batches())).images[0])
    return np.asarray(training(folder, recipe).next_batch().images[0])


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    for split, count in (("train", 4), ("eval", 1)):
        write_split(tmp_path, split, count, draw=lambda _: BOARD)
    return tmp_path


@pytest.mark.parametrize("path", PATHS)
def test_images_are_resized_by_unfiltered_linear_interpolation(boards: Path, path: str) -> None:
    ours = _first_image(boards, path).transpose(1, 2, 0)
    decoded = np.asarray(Image.open(io.BytesIO(jpeg(BOARD))))
    assert np.abs(ours - _linear(decoded.astype(np.float64), SIDE)).max() <= 3
    # Pillow's own linear filter widens with the scale; the records' pipelines did not filter, nor does ours.
    for other in (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
        pixels = np.asarray(Image.fromarray(decoded).resize((SIDE, SIDE), other), np.float64)
        assert np.abs(ours - pixels).mean() > 10, other


@pytest.mark.parametrize("path", PATHS)
def test_each_colour_loses_its_mean_and_is_divided_by_its_deviation(boards: Path, path: str) -> None:
    normalised = _first_image(boards, path, "data.mean=[10, 20, 30]", "data.std=[2, 4, 8]")
    expected = (_first_image(boards, path) - np.array([[[10]], [[20]], [[30]]])) / np.array([[[2]], [[4]], [[8]]])
    assert np.abs(normalised - expected).max() < 1e-4
