"""A stream of images that is opened with the state of another continues exactly where that one stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.schema import EngineSettings
from data.input.batches import TrainingSource
from data.input.packed import open_training
from data.input.synthetic import open_synthetic_training
from tests.configs.test_progressive_resizing import GROWING
from tests.data.input.test_packed import recipe_for, write_split
from tests.host_arrays import HostArrays

SAMPLES, BATCH, WORLD = 53, 4, 2
EPOCHS = (1, 8, 14, 21)
"""Numbers of batches after which an epoch begins. Each epoch leaves samples over, as the shards have 26 and 27."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write records of noise, so that no two images and no two crops are alike."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(3)
    write_split(folder, "train", SAMPLES, draw=lambda _: random.integers(0, 256, (20, 24, 3), np.uint8))
    return folder


def _open(folder: Path, overrides: list[str], rank: int, state: bytes = b"") -> TrainingSource:
    recipe = recipe_for(SAMPLES, overrides=["data.shuffle_buffer=9", *overrides])
    place: dict[str, Any] = {"batch_size": BATCH, "rank": rank, "world_size": WORLD, "state": state}
    place["arrays"] = HostArrays()
    if recipe.data.source == "synthetic":
        return open_synthetic_training(recipe, EngineSettings(), **place)
    return open_training(recipe, EngineSettings(), folder, device_id=None, **place)


def _take(source: TrainingSource, batches: range) -> list[np.ndarray]:
    images = []
    for number in batches:
        if number in EPOCHS or number == batches.start:
            source.begin_epoch(1 + sum(number >= first for first in EPOCHS[1:]))
        images.append(source.next_batch().images)
    return images


@pytest.mark.medium
@pytest.mark.parametrize(
    "overrides",
    [
        ["data.source=synthetic"],
        ["data.crop={kind: shift, padding: 3}"],
        ["data.crop={kind: resized}", "data.flip=true", "data.augmentation_repeats=2", "data.plain_from_epoch=4"],
        ["data.auto_augment=randaugment", "data.randaugment_std=3", "data.augmentation_repeats=2", GROWING],
        ["data.source=synthetic", GROWING],
        ["data.crop={kind: resized}", "data.plain_from_epoch=4", "data.eval_resize=16", GROWING],
    ],
    ids=[
        "synthetic",
        "shift",
        "repeated",
        "growing, augmented",
        "growing, synthetic",
        "growing, plain at the end",
    ],
)
def test_a_stream_continues_wherever_it_was_interrupted(folder: Path, overrides: list[str]) -> None:
    whole = _take(_open(folder, overrides, 1), range(1, 26))
    # A pipeline that chooses among operations is built in half a second; the other cases have the ends of epochs.
    for cut in (16,) if "data.auto_augment=randaugment" in overrides else (8, 16, 21):
        first = _open(folder, overrides, 1)
        _take(first, range(1, cut))
        again = _open(folder, overrides, 1, first.state())
        assert again.state() == first.state(), "not one batch was taken yet"
        rest = _take(again, range(cut, 26))
        assert all(np.array_equal(one, other) for one, other in zip(whole[cut - 1 :], rest, strict=True)), cut
        first.close()
        again.close()
