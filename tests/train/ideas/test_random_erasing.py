"""Random erasing: the zeros in images of ones against the rectangles that Zhong et al. and torchvision draw."""

import numpy as np
import pytest

from configs.ideas.part import Part, Place, parts_of
from configs.load import load_both
from configs.plan import plan_run
from data.input.batches import TrainingBatch
from tests.engines import ALONE, each_engine
from train.engine.protocol import Engine, open_engine

SIDE, IMAGES, PROBABILITY = 32, 4000, 0.4


def _part(name: str, *overrides: str, layout: str = "NCHW", rank: int = 0) -> tuple[Engine, Part]:
    given = [f"model.image_size={SIDE}", "data.eval_resize=32", f"data.random_erasing={PROBABILITY}"]
    recipe, cluster = load_both("digits", "laptop", [*given, f"cluster.engine.name={name}", *overrides])
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"layout": layout})})
    engine = open_engine(cluster, ALONE)
    (part,) = parts_of(Place(recipe, cluster, plan_run(recipe, 2), rank, engine, None))
    return engine, part


def _erased(engine: Engine, part: Part, step: int = 0, number: int = 0, count: int = 64) -> np.ndarray:
    """Return where images of ones have become zeros."""
    batch = TrainingBatch(engine.from_host(np.ones((count, 3, SIDE, SIDE), np.float32)), None)
    return np.equal(engine.to_host(part.batch(step, number, batch).images), 0)


@pytest.mark.medium
@each_engine
def test_the_zeros_are_rectangles_with_the_areas_and_ratios_of_torchvision_anywhere(name: str) -> None:
    erased = _erased(*_part(name), count=IMAGES)
    assert (erased == erased[:, :1]).all(), "of every channel"
    rows, columns = erased[:, 0].any(2), erased[:, 0].any(1)
    np.testing.assert_array_equal(erased[:, 0], rows[:, :, None] & columns[:, None, :])
    is_erased = rows.any(1)
    assert abs(is_erased.mean() - PROBABILITY) < 4 * np.sqrt(PROBABILITY * (1 - PROBABILITY) / IMAGES)
    heights, widths = rows[is_erased].sum(1), columns[is_erased].sum(1)
    # A side is rounded by at most half a pixel.
    assert ((heights + 0.5) * (widths + 0.5) >= 0.02 * SIDE**2).all()
    assert ((heights - 0.5) * (widths - 0.5) <= 0.33 * SIDE**2).all()
    assert ((heights - 0.5) / (widths + 0.5) <= 3.3).all()
    assert ((heights + 0.5) / (widths - 0.5) >= 0.3).all()
    shares, logarithms = heights * widths / SIDE**2, np.log(heights / widths)
    # The uniform distributions from 0.02 to 0.33, and from log 0.3 to log 3.3.
    assert shares.mean() == pytest.approx(0.175, abs=0.01)
    assert shares.std() == pytest.approx(0.31 / np.sqrt(12), rel=0.05)
    assert logarithms.std() == pytest.approx(np.log(11) / np.sqrt(12), rel=0.05)
    for lines in (rows, columns):
        first, last = lines[is_erased].argmax(1), lines[is_erased][:, ::-1].argmax(1)
        assert first.min() == last.min() == 0
        assert first.mean() == pytest.approx(last.mean(), abs=1)


@each_engine
@pytest.mark.parametrize("number_type", ["float16", "float32"])
def test_both_layouts_lose_the_same_rectangles_and_all_else_keeps_its_bits(name: str, number_type: str) -> None:
    images = np.random.default_rng(1).uniform(1, 2, (16, 3, SIDE, SIDE)).astype(number_type)
    expected = np.where(_erased(*_part(name), count=16), 0, images)
    assert (expected == 0).any()
    for layout, order in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        engine, part = _part(name, layout=layout)
        labels = engine.from_host(np.arange(16, dtype=np.float32))
        batch = TrainingBatch(engine.from_host(np.ascontiguousarray(images.transpose(order))), labels)
        found = part.batch(0, 0, batch)
        np.testing.assert_array_equal(engine.to_host(found.images), expected.transpose(order))
        np.testing.assert_array_equal(engine.to_host(batch.images), images.transpose(order))
        assert (engine.to_host(found.images).dtype, found.labels) == (number_type, labels)


@each_engine
def test_rectangles_follow_from_seed_step_rank_and_micro_batch_alone_and_end_with_plain_images(name: str) -> None:
    engine, part = _part(name, "data.plain_from_epoch=3")
    places = [(5, 0), (6, 0), (5, 1)]
    drawn = [_erased(engine, part, *place) for place in places]
    drawn += [_erased(*_part(name, "run.seed=2"), 5), _erased(*_part(name, rank=1), 5)]
    assert len({each.tobytes() for each in drawn}) == len(drawn)
    np.testing.assert_array_equal(_erased(engine, part, 5), drawn[0])
    first = plan_run(load_both("digits", "laptop", [])[0], 2).epoch_steps(3).start
    assert [_erased(engine, part, step).any() for step in (first - 1, first, first + 9)] == [True, False, False]
