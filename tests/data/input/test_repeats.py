"""Repeated augmentation: how often each image comes in an epoch, counted by labels, and that its repeats differ."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.load import load_both
from configs.plan import plan_run
from configs.schema import EngineSettings
from data.input.synthetic import open_synthetic_training
from tests.data.input.test_packed import SIDE, pattern, recipe_for, take, training, write_split
from tests.host_arrays import HostArrays

IMAGES, BATCH = 96, 8


def _recipe(repeats: int, *overrides: str, images: int = IMAGES):  # type: ignore[no-untyped-def]
    return recipe_for(images, overrides=[f"data.augmentation_repeats={repeats}", *overrides])


@pytest.mark.medium
@pytest.mark.parametrize(("world", "repeats"), [(1, 4), (2, 2), (3, 4)])
def test_an_epoch_has_a_share_of_the_images_each_as_often_and_the_next_epoch_others(
    tmp_path: Path, world: int, repeats: int
) -> None:
    write_split(tmp_path, "train", IMAGES)
    recipe, batches = _recipe(repeats), IMAGES // world // BATCH
    ranks = [training(tmp_path, recipe, batch=BATCH, rank=rank, world=world) for rank in range(world)]
    epochs = []
    for epoch in range(1, 13):
        labels = []
        for source in ranks:
            source.begin_epoch(epoch)
            labels += take(source, batches)
        assert labels[::repeats] == labels[repeats - 1 :: repeats], "in succession"
        counts = Counter(labels)
        assert set(counts.values()) == {repeats}
        assert sum(counts.values()) == IMAGES
        epochs.append(frozenset(counts))
    assert len(set(epochs)) == len(epochs)
    assert len(frozenset().union(*epochs)) > IMAGES * (0.9 if repeats == 2 else 0.8)
    for source in ranks:
        source.close()


def test_a_plain_epoch_has_every_image_once(tmp_path: Path) -> None:
    write_split(tmp_path, "train", IMAGES)
    source = training(tmp_path, _recipe(4, "data.plain_from_epoch=2", "run.epochs=2"), batch=BATCH)
    assert len(set(take(source, IMAGES // BATCH))) == IMAGES // 4
    source.begin_epoch(2)
    assert sorted(take(source, IMAGES // BATCH)) == [*range(IMAGES)]


def test_the_repeats_of_an_image_are_cropped_and_mirrored_each_for_itself(tmp_path: Path) -> None:
    write_split(tmp_path, "train", IMAGES, draw=pattern)
    source = training(tmp_path, _recipe(4, "data.crop={kind: resized}", "data.flip=true"), batch=BATCH)
    images = source.next_batch().images
    assert len({image.tobytes() for image in images}) == BATCH
    images = training(tmp_path, _recipe(4), batch=BATCH).next_batch().images
    assert images.shape == (BATCH, 3, SIDE, SIDE)
    for first in (0, 4):
        np.testing.assert_array_equal(images[first : first + 4], images[first : first + 1].repeat(4, axis=0))


def test_images_made_in_memory_come_as_often() -> None:
    recipe = _recipe(2, "data.source=synthetic", images=1000)
    given, every = (
        open_synthetic_training(each, EngineSettings(), arrays=HostArrays(), batch_size=BATCH, rank=1, world_size=2)
        for each in (recipe, recipe_for(1000, overrides=["data.source=synthetic"]))
    )
    for _ in range(3):
        images = every.next_batch().images
        np.testing.assert_array_equal(given.next_batch().images, images[[0, 0, 1, 1, 2, 2, 3, 3]])


def test_micro_batches_that_do_not_hold_all_repeats_and_kept_batches_are_refused() -> None:
    recipe, _ = load_both("digits", "laptop", ["data.augmentation_repeats=33"])
    with pytest.raises(ConfigError, match=r"^batch\.global_size: got 64, allowed: .*data\.augmentation_repeats \(33\)"):
        plan_run(recipe, 2)
    assert plan_run(load_both("digits", "laptop", ["data.augmentation_repeats=3"])[0], 2).per_rank_batch_size == 32
    with pytest.raises(ConfigError, match=r"^data\.keep_batches: got True, allowed: false with data\.aug"):
        load_both("digits", "laptop", ["data.augmentation_repeats=2", "data.keep_batches=true"])
