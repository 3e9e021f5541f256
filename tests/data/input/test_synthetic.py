"""Synthetic images do not depend on how the global batch is divided, and their classes can be learned."""

from typing import Any

import numpy as np
import pytest

from configs.load import load_recipe
from configs.schema import EngineSettings, Recipe
from data.input.synthetic import open_synthetic_evaluation, open_synthetic_training
from tests.host_arrays import HostArrays

Array = Any


def recipe_for(*overrides: str) -> Recipe:
    return load_recipe("digits", ["data.source=synthetic", "model.image_size=8", *overrides])


def steps(
    recipe: Recipe, count: int, *, rank: int = 0, world: int = 1, accumulation: int = 1, batch: int = 8
) -> list[tuple[Array, Array]]:
    """Return the micro-batches of ``count`` steps of one rank."""
    source = open_synthetic_training(
        recipe, EngineSettings(), arrays=HostArrays(), batch_size=batch, rank=rank, world_size=world
    )
    source.begin_epoch(1)
    batches = (source.next_batch() for _ in range(count * accumulation))
    return [(images, labels) for images, labels in batches]


def test_two_ranks_see_in_a_step_what_one_rank_sees_in_two_accumulation_steps() -> None:
    recipe = recipe_for("data.train_samples=100")
    alone = steps(recipe, 20, accumulation=2)
    ranks = [steps(recipe, 20, rank=rank, world=2) for rank in range(2)]
    together = [batch for step in zip(*ranks, strict=True) for batch in step]
    for (images, labels), (others, other_labels) in zip(alone, together, strict=True):
        np.testing.assert_array_equal(images, others)
        np.testing.assert_array_equal(labels, other_labels)


def test_an_epoch_has_each_sample_once_and_the_next_epoch_repeats_them() -> None:
    images = np.concatenate([images for images, _ in steps(recipe_for("data.train_samples=40"), 10)])
    assert len({image.tobytes() for image in images[:40]}) == 40
    np.testing.assert_array_equal(images[:40], images[40:])


def test_seeds_and_splits_give_different_images() -> None:
    alike = ("data.train_samples=40", "data.eval_samples=40")  # streams of one name would give the same images
    first, second = (steps(recipe_for(f"run.seed={seed}", *alike), 1)[0][0] for seed in (1, 2))
    assert np.abs(first - second).mean() > 0.5
    held_back = open_synthetic_evaluation(
        recipe_for(*alike), EngineSettings(), arrays=HostArrays(), batch_size=8, rank=0, world_size=1
    )
    assert np.abs(first - next(iter(held_back.batches())).images).mean() > 0.5


def test_the_mean_images_of_the_classes_differ_and_follow_from_the_seed() -> None:
    recipe = recipe_for("data.train_samples=500", "data.eval_samples=100")
    other_seed = recipe_for("data.train_samples=500", "data.eval_samples=100", "run.seed=2")
    means, others_means = (
        np.stack([images[labels == label].mean(axis=0) for label in range(10)])
        for ((images, labels),) in (steps(each, 1, batch=500) for each in (recipe, other_seed))
    )
    assert np.abs(means - others_means).mean() > 0.5
    source = open_synthetic_evaluation(
        recipe, EngineSettings(), arrays=HostArrays(), batch_size=100, rank=0, world_size=1
    )
    others, other_labels, _ = next(iter(source.batches()))
    distances = ((others[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == other_labels).mean() > 0.95


@pytest.mark.parametrize(("side", "widths"), [(8, (2, 2, 2, 2)), (9, (3, 2, 2, 2)), (11, (3, 3, 3, 2))])
def test_a_pattern_of_four_by_four_cells_fills_an_image_of_any_side(side: int, widths: tuple[int, ...]) -> None:
    images, labels = steps(recipe_for(f"model.image_size={side}", "data.train_samples=4000"), 1, batch=4000)[0]
    mean = images[labels == 3].mean(axis=0)
    begins = np.cumsum((0, *widths))[:-1]
    cells = np.repeat(np.repeat(mean[:, begins][..., begins], widths, axis=1), widths, axis=2)
    assert np.abs(mean - cells).max() < 0.5, "in a cell, only the mean of the noise differs"


@pytest.mark.parametrize("world", [1, 3, 7, 30])
def test_every_evaluation_counts_every_image_once(world: int) -> None:
    recipe = recipe_for("data.eval_samples=20")
    sources = [
        open_synthetic_evaluation(
            recipe, EngineSettings(), arrays=HostArrays(), batch_size=4, rank=rank, world_size=world
        )
        for rank in range(world)
    ]
    for _ in range(2):
        batches = [batch for source in sources for batch in source.batches()]
        seen = [image.tobytes() for batch in batches for image in batch.images[: batch.num_valid]]
        assert len(seen) == len(set(seen)) == 20
        assert {batch.images.shape for batch in batches} == {(4, 3, 8, 8)}


def test_layout_and_fourth_channel_are_those_of_the_run() -> None:
    source = open_synthetic_training(
        recipe_for("model.input_channels=4"),
        EngineSettings(layout="NHWC"),
        batch_size=2,
        rank=0,
        world_size=1,
        arrays=HostArrays(),
    )
    images = source.next_batch().images
    assert images.shape == (2, 8, 8, 4)
    assert not images[..., 3].any()
    assert 0.5 < images[..., :3].std() < 2


def test_a_grey_image_is_the_first_channel_of_a_coloured_one() -> None:
    grey, coloured = (steps(recipe_for(f"model.input_channels={channels}"), 1)[0][0] for channels in (1, 3))
    np.testing.assert_array_equal(grey, coloured[:, :1])
    assert np.abs(coloured[:, 0] - coloured[:, 1]).mean() > 0.5


def test_an_image_has_a_fifth_of_the_classes_where_it_may_have_several() -> None:
    recipe = recipe_for(
        "loss={kind: sigmoid}", "run.target_top1=null", "model.num_classes=50", "data.train_samples=400"
    )
    images, labels = (np.concatenate(each) for each in zip(*steps(recipe, 10, batch=40), strict=True))
    assert (labels.shape, labels.dtype) == ((400, 50), np.float32)
    assert images.std() == pytest.approx(11**0.5, rel=0.2), "ten patterns and the noise"
    assert labels.mean() == pytest.approx(0.2, abs=0.02)  # seven deviations of 20,000 draws
