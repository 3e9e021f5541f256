"""MixUp and CutMix: the drawn shares and boxes, and the mixed images and labels, against the papers in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.ideas.part import Place
from configs.load import load_both
from configs.plan import plan_run
from data.input.batches import TrainingBatch
from tests.engines import cpu_engine, each_engine
from train.ideas.mixing import Mix, MixingPart

DRAWS = 2000
SIDE = 24


def _part(*overrides: str, rank: int = 0, engine: Any = None, layout: str = "NCHW") -> MixingPart:
    words = [f"model.image_size={SIDE}", "data.eval_resize=32", "data.mixup_alpha=0", *overrides]
    recipe, cluster = load_both("digits", "laptop", words)
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"layout": layout})})
    return MixingPart(Place(recipe, cluster, plan_run(recipe, 1), rank, engine, None))


def _mixing(*overrides: str, rank: int = 0) -> Callable[[int, int], Mix]:
    return _part(*overrides, rank=rank).mix


def _box_share(draw: np.random.Generator, alpha: float) -> float:
    """Return the share that CutMix leaves, as ``rand_bbox`` and the training loop of its authors work it out."""
    cut = int(SIDE * np.sqrt(1.0 - draw.beta(alpha, alpha)))
    x, y = draw.integers(SIDE, size=2)
    (x1, x2), (y1, y2) = (np.clip([at - cut // 2, at + cut // 2], 0, SIDE) for at in (x, y))
    return float(1 - (x2 - x1) * (y2 - y1) / (SIDE * SIDE))


@pytest.mark.medium
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_have_the_moments_of_beta_and_boxes_those_of_the_authors_code(alpha: float) -> None:
    draw = np.random.default_rng(0)
    mixing = _mixing(f"data.mixup_alpha={alpha}")
    mixes = [mixing(step, 0) for step in range(DRAWS)]
    shares = np.array([each.share for each in mixes])
    variance = 1 / (4 * (2 * alpha + 1))
    assert all(each.box is None for each in mixes)
    assert abs(shares.mean() - 0.5) < 4 * np.sqrt(variance / DRAWS)
    assert shares.var() == pytest.approx(variance, rel=0.1)
    mixing = _mixing(f"data.cutmix_alpha={alpha}")
    mixes = [mixing(step, 0) for step in range(DRAWS)]
    shares = np.array([each.share for each in mixes])
    expected = np.array([_box_share(draw, alpha) for _ in range(DRAWS)])
    assert abs(shares.mean() - expected.mean()) < 5 * expected.std() / np.sqrt(DRAWS)
    assert shares.std() == pytest.approx(expected.std(), rel=0.1)
    left = np.ones((DRAWS, SIDE, SIDE))
    for number, each in enumerate(mixes):
        if each.box is not None:
            left[number][each.box] = 0
    np.testing.assert_allclose(left.mean(axis=(1, 2)), shares, atol=1e-12)
    np.testing.assert_allclose(left.mean(axis=0), left.mean(axis=0).T, atol=0.05)


def test_a_mix_follows_from_seed_step_rank_and_micro_batch_alone_and_ends_with_plain_images() -> None:
    both = ["data.mixup_alpha=1", "data.cutmix_alpha=1"]
    mixing = _mixing(*both)
    assert [mixing(step, 1) for step in (5, 3, 5)] == [_mixing(*both)(step, 1) for step in (5, 3, 5)]
    others = _mixing(*both, "run.seed=2"), _mixing(*both, rank=1)
    drawn = [mixing(5, 0), mixing(6, 0), mixing(5, 1), *(other(5, 0) for other in others)]
    assert len({each.share for each in drawn}) == len(drawn)
    kinds = [mixing(step, 0).box is None for step in range(1000)]
    assert 440 < sum(kinds) < 560
    recipe, _ = load_both("digits", "laptop", ["data.plain_from_epoch=3"])
    first = plan_run(recipe, 1).epoch_steps(3).start
    until = _mixing(*both, "data.plain_from_epoch=3")
    assert until(first - 1, 0) == mixing(first - 1, 0) != Mix(1.0) == until(first, 0) == until(first + 9, 1)


@each_engine
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("box", [None, (slice(1, 4), slice(0, 2))])
@pytest.mark.parametrize("number_type", ["float16", "float32"])
def test_images_and_labels_are_mixed_with_those_from_the_end(
    name: str, layout: str, box: Any, number_type: str
) -> None:
    engine = cpu_engine(name)

    def mixed_by(mix: Mix) -> TrainingBatch:
        part: Any = _part(engine=engine, layout=layout)
        part.mix = lambda _step, _number: mix
        mixed: TrainingBatch = part.batch(0, 0, batch)
        return mixed

    images = np.random.default_rng(1).standard_normal((5, 3, 6, 7)).astype(number_type)
    labels = np.array([4, 0, 7, 7, 1], np.float32)
    share = 0.7
    mixed = share * images.astype(np.float64) + (1 - share) * images[::-1].astype(np.float64)
    if box is not None:
        mixed = images.copy()
        mixed[:, :, 1:4, 0:2] = images[::-1, :, 1:4, 0:2]
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    given = np.ascontiguousarray(images.transpose(order))
    batch = TrainingBatch(engine.from_host(given), engine.from_host(labels))
    found = mixed_by(Mix(share, box))
    values = engine.to_host(found.images)
    assert values.dtype == number_type
    tolerance = 0 if box else 1e-3 if number_type == "float16" else 1e-6
    np.testing.assert_allclose(values, mixed.transpose(order), rtol=tolerance, atol=2 * tolerance)
    rows = np.stack([labels, [1, 7, 7, 0, 4], np.full(5, share)], axis=1)
    np.testing.assert_allclose(engine.to_host(found.labels), rows, rtol=1e-6)
    np.testing.assert_array_equal(engine.to_host(batch.images), given)
    np.testing.assert_array_equal(engine.to_host(mixed_by(Mix(1.0)).images), given)


def test_what_cannot_be_mixed_is_refused() -> None:
    recipe, _ = load_both("digits", "laptop", ["data.mixup_alpha=0.2", "batch.bn_span=1"])
    with pytest.raises(ConfigError, match=r"^batch\.global_size: got 64, allowed: 2 or more images a micro-batch"):
        plan_run(recipe, 1)
    labelled = ["loss={kind: sigmoid}", "run.target_top1=null", "data.source=synthetic", "data.cutmix_alpha=1"]
    with pytest.raises(ConfigError, match=r"^data\.cutmix_alpha: got 1\.0, allowed: 0 where loss\.kind is sigmoid"):
        load_both("digits", "laptop", labelled)
