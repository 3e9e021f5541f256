"""A stream of images that is opened with the state of another continues exactly where that one stopped."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.load import load_recipe
from configs.schema import EngineSettings, Recipe
from data.input.batches import TrainingSource
from data.input.packed import open_training
from data.input.synthetic import open_synthetic_training
from data.recordio import RecordWriter, pack_image
from tests.configs.test_progressive_resizing import GROWING

SIDE, SAMPLES, BATCH, WORLD = 16, 53, 4, 2
EPOCHS = (1, 8, 14, 21)
"""Numbers of batches after which an epoch begins. Each epoch leaves samples over, as the shards have 26 and 27."""


def _write(folder: Path, bad: int | None = None) -> Path:
    """Write records of noise, so that no two images and no two crops are alike."""
    random = np.random.default_rng(3)
    with RecordWriter(folder / "train.rec", folder / "train.idx") as writer:
        for number in range(SAMPLES):
            file = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)).save(file, "JPEG")
            writer.write(pack_image(number % 10, number, b"torn" if number == bad else file.getvalue()))
        writer.finish()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("data"))


def _open(folder: Path, overrides: list[str], rank: int, state: bytes = b"") -> TrainingSource:
    recipe: Recipe = load_recipe(
        "digits",
        [
            f"data.train_samples={SAMPLES}",
            f"model.image_size={SIDE}",
            "data.bad_record=skip",
            "data.shuffle_buffer=9",
            *overrides,
        ],
    )
    if recipe.data.source == "synthetic":
        return open_synthetic_training(
            recipe, EngineSettings(), batch_size=BATCH, rank=rank, world_size=WORLD, state=state
        )
    return open_training(
        recipe, EngineSettings(), folder, batch_size=BATCH, rank=rank, world_size=WORLD, device_id=None, state=state
    )


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
        ["data.crop={kind: resized}", "data.flip=true"],
        ["data.crop={kind: resized}", "data.flip=true", "data.plain_from_epoch=3"],
        ["data.crop={kind: resized}", "data.flip=true", "data.augmentation_repeats=2", "data.plain_from_epoch=4"],
        ["data.auto_augment=randaugment", "data.randaugment_std=3", "data.augmentation_repeats=2", GROWING],
        ["data.source=synthetic", GROWING],
        ["data.crop={kind: resized}", "data.plain_from_epoch=4", "data.eval_resize=16", GROWING],
    ],
    ids=[
        "synthetic",
        "shift",
        "resized",
        "plain at the end",
        "repeated",
        "growing, augmented",
        "growing, synthetic",
        "growing, plain at the end",
    ],
)
def test_a_stream_continues_wherever_it_was_interrupted(folder: Path, overrides: list[str]) -> None:
    whole = _take(_open(folder, overrides, 1), range(1, 26))
    for cut in (8, 16, 21):
        first = _open(folder, overrides, 1)
        _take(first, range(1, cut))
        again = _open(folder, overrides, 1, first.state())
        assert again.state() == first.state(), "not one batch was taken yet"
        rest = _take(again, range(cut, 26))
        assert all(np.array_equal(one, other) for one, other in zip(whole[cut - 1 :], rest, strict=True)), cut
        first.close()
        again.close()


def test_interruptions_change_nothing_however_many_there_are_in_a_pass(folder: Path) -> None:
    overrides = ["data.crop={kind: resized}", "data.flip=true"]
    whole = _take(_open(folder, overrides, 0), range(1, 26))
    source, images = _open(folder, overrides, 0), []
    for part in (range(1, 3), range(3, 4), range(4, 7), range(7, 17), range(17, 18), range(18, 26)):
        images += _take(source, part)
        source = _open(folder, overrides, 0, source.state())
    assert np.array_equal(np.stack(whole), np.stack(images))


def test_a_record_that_was_left_out_is_not_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write(tmp_path, bad=7)
    first = _open(tmp_path, ["data.crop={kind: none}"], 0)
    _take(first, range(1, 16))
    assert "left out" in caplog.text
    caplog.clear()
    again = _open(tmp_path, ["data.crop={kind: none}"], 0, first.state())
    _take(again, range(16, 40))
    assert not caplog.text
