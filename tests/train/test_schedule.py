"""Schedules at hand-computed points."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.load import load_recipe
from configs.optimizers import Lars
from configs.plan import plan_run
from configs.schema import Recipe
from tests.oracles import (
    closed_lr,
    composer_lr,
    ffcv_lr,
    google_lr,
    record_lr,
    record_weight_decay_step,
    shampoo_lr,
    siat_lr,
    timm_lr,
    torchvision_lr,
)
from tests.train.test_logged_hyperparameters import CLOSED
from train.schedule import HyperParameters, LrSchedule, resolve_schedule


@dataclass(frozen=True)
class Published:
    """A published run: its ranks and steps, and the rate that its code has at a 0-based step."""

    ranks: int
    steps: int
    lr: Callable[[int], float]
    warmup_tolerance: float = 1e-9
    tolerance: float = 1e-9


def _closed(name: str) -> Published:
    ranks, _, _, base_lr, _, warmup, decay, *_ = CLOSED[name]
    return Published(ranks, warmup + decay, lambda step: closed_lr(step, base_lr, warmup, warmup + decay))


PUBLISHED = {
    **{name: _closed(name) for name in CLOSED},
    "abci-b86016": Published(2048, 1340, record_lr),
    # The warm-up of the code ends at step 625.57, that of the recipe at 625.
    "lars-v20-b32768": Published(512, 2355, google_lr, warmup_tolerance=1e-3),
    # The warm-up of the code has 196.25 steps and its decay 1,531.75, those of the recipe 196 and 1,532.
    "google-v10-shampoo-b32768": Published(128, 1726, shampoo_lr, warmup_tolerance=1.3e-3, tolerance=4e-4),
    "mosaic-v20-b2048": Published(8, 17499, composer_lr),
    # 7.6 epochs of 39 steps are 296.4, and 5.6 of 78 steps 436.8; the code cuts both to whole steps.
    "siat-v07-b32768": Published(1024, 936, lambda step: siat_lr(step, 25, 296, 936)),
    "siat-v07-b16384": Published(512, 1560, lambda step: siat_lr(step, 21, 436, 1560)),
}
LANDMARKS = {0: 0.02407, 269: 6.5, 539: 13, 540: 13, 700: 7.858, 930: 2.855, 1200: 0.2436, 1320: 0.0325, 1339: 0.0325,
             5000: 0.0325}  # fmt: skip
"""0-based step -> rate in the logs of the 2019 record."""


def _schedule(overrides: list[str], world_size: int = 2, recipe: str = "digits") -> LrSchedule:
    loaded: Recipe = load_recipe(recipe, overrides)
    return resolve_schedule(loaded, plan_run(loaded, world_size))


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_the_records_rate_at_its_landmarks_whatever_the_number_of_ranks(world_size: int) -> None:
    schedule = _schedule([], world_size, "abci-b86016")
    assert {step: schedule.at(step).lr for step in LANDMARKS} == pytest.approx(LANDMARKS, rel=2e-4)


@pytest.mark.medium
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_runs_rate_at_every_step_of_its_code(name: str) -> None:
    run = PUBLISHED[name]
    schedule = _schedule([], run.ranks, name)
    rates = [(schedule.at(step).lr, run.lr(step)) for step in range(run.steps + 100)]
    warm = schedule.timing.warmup_steps
    parts = ((rates[:warm], run.warmup_tolerance), (rates[warm:], run.tolerance))
    for part, tolerance in parts:
        found, published = zip(*part, strict=True)
        np.testing.assert_allclose(found, published, rtol=tolerance, atol=1e-15 * schedule.block.base_lr)


@pytest.mark.parametrize("epochs", [16, 24, 32, 40, 56, 88])
def test_ffcvs_rate_is_the_published_one_at_equal_shares_of_the_run(epochs: int) -> None:
    schedule = _schedule([f"run.epochs={epochs}"], 8, "ffcv-b4096")
    steps = schedule.timing.warmup_steps + schedule.timing.decay_steps
    assert steps == math.ceil(epochs * 160_145 / 512)
    # The warm-up has 2 epochs of nominally 313 steps, where real ones have 312.8.
    for step in (*range(0, steps, 25), 625, steps - 1):
        assert schedule.at(step).lr == pytest.approx(ffcv_lr(step, steps, epochs), abs=1.7 / 600)
    assert (schedule.at(625).lr, schedule.at(steps - 1).lr) == (1.7, 0)


ONCE_AN_EPOCH = {
    "torchvision-v2-b1024": (600, lambda epoch: torchvision_lr(epoch, 0.5, 600, 5, 0.01)),
    "timm-a2-b2048": (300, lambda epoch: timm_lr(epoch, 0.005, 300, 5, 1e-4, 1e-6)),
    "timm-a3-b2048": (100, lambda epoch: timm_lr(epoch, 0.008, 100, 5, 1e-4, 1e-6)),
}
"""Recipe -> epochs, and the rate that its code has in a 0-based epoch."""


@pytest.mark.parametrize(("name", "epochs", "lr"), [(name, *row) for name, row in ONCE_AN_EPOCH.items()])
def test_a_rate_that_changes_once_an_epoch_is_that_of_the_code_at_every_step_of_every_epoch(
    name: str, epochs: int, lr: Callable[[int], float]
) -> None:
    recipe = load_recipe(name)
    plan = plan_run(recipe, 8)
    found = resolve_schedule(recipe, plan)
    for epoch in range(epochs):
        steps = plan.epoch_steps(epoch + 1)
        rates = [found.at(step).lr for step in (steps[0], steps[len(steps) // 2], steps[-1])]
        assert rates == pytest.approx([lr(epoch)] * 3, rel=1e-12)
    assert found.at(plan.total_steps).lr == pytest.approx(recipe.schedule.end_lr, rel=1e-12)
    assert found.at(plan.total_steps - 1).step == plan.total_steps - 1
    short = load_recipe(name, ["run.max_steps=8000"])
    smoke = resolve_schedule(short, plan_run(short, 8))
    assert [smoke.at(step).lr for step in range(0, 8000, 500)] == [found.at(step).lr for step in range(0, 8000, 500)]


def test_the_records_weight_decay_and_momentum_at_every_step() -> None:
    optimizer = load_recipe("abci-b86016").optimizer
    assert isinstance(optimizer, Lars)
    assert optimizer.trust_weight_decay == pytest.approx(13 * 5e-5)
    schedule = _schedule([], 2048, "abci-b86016")
    for step in range(1400):
        values = schedule.at(step)
        assert math.isclose(values.lr * values.weight_decay, record_weight_decay_step(step), rel_tol=1e-12)
        assert values.momentum == 0.96


@pytest.mark.parametrize(
    ("shape", "rates"), [("linear", [6.85, 12.9, 18.95, 25]), ("cosine", [4.344008, 12.9, 21.455992, 25])]
)
def test_a_warm_up_rises_from_its_start_to_exactly_the_base_rate(shape: str, rates: list[float]) -> None:
    """SIAT's rates with W = 4: 0.8 + 24.2 (1 + cos(pi + pi n/4))/2; cos(5 pi/4) = -0.7071068, cos(3 pi/2) = 0."""
    schedule = _schedule([f"schedule.warmup_shape={shape}", "schedule.warmup_start_lr=0.8", "schedule.base_lr=25",
                          "schedule.warmup_epochs=null", "schedule.warmup_steps=4",
                          "schedule.decay={name: cosine, steps: 10}"])  # fmt: skip
    assert [schedule.at(step).lr for step in range(4)] == pytest.approx(rates, rel=1e-6)
    assert schedule.at(3).lr == schedule.at(4).lr == 25
    assert schedule.at(9).lr == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["schedule.warmup_start_lr=14"], r"got 14\.0, allowed: at most schedule.base_lr \(13\)"),
        (["schedule.warmup_shape=cosine"], r"weight_decay_lag_steps: got 1, .* linear and starts at 0"),
        (["schedule.warmup_start_lr=1"], r"weight_decay_lag_steps: got 1, .* linear and starts at 0"),
    ],
)
def test_a_warm_up_that_fits_no_rate_or_no_lag_is_refused(overrides: list[str], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        load_recipe("abci-b86016", overrides)


def test_a_decoupled_decay_follows_the_rate_and_is_full_at_the_base_rate() -> None:
    schedule = _schedule(["optimizer={name: sgd, weight_decay: 0.01, decoupled_weight_decay: true}",
                          "schedule.base_lr=2", "schedule.warmup_epochs=null", "schedule.warmup_steps=4",
                          "schedule.decay={name: polynomial, power: 1, steps: 10}"])  # fmt: skip
    assert [schedule.at(step).weight_decay for step in (0, 3, 9, 14)] == pytest.approx([0.0025, 0.01, 0.005, 0])


def test_a_corrected_momentum_follows_the_rate_and_is_the_usual_one_after_a_rate_of_zero() -> None:
    schedule = _schedule(["optimizer={name: sgd, momentum: 0.9, weight_decay: 0, momentum_correction: true}",
                          "schedule.warmup_epochs=null", "schedule.warmup_steps=2",
                          "schedule.decay={name: polynomial, power: 1, steps: 4}"])  # fmt: skip
    momenta = [0.9, 1.8, 0.9, 0.9 * 3 / 4, 0.9 * 2 / 3, 0.9 / 2, 0, 0.9]
    assert [schedule.at(step).momentum for step in range(8)] == pytest.approx(momenta)


def test_momentum_and_weight_decay_are_constant_without_a_lag() -> None:
    plain = ["optimizer={name: sgd, momentum: 0.9, weight_decay: 5e-5}", "schedule.base_lr=0.8",
             "schedule.decay={name: polynomial, power: 1, end_lr_ratio: 0.125, steps: 10}",
             "schedule.warmup_epochs=null"]  # fmt: skip
    found = _schedule([*plain, "schedule.warmup_steps=0"]).at(3)
    assert found == HyperParameters(found.lr, 0.9, 5e-5, 3)
    assert found.lr == pytest.approx(0.8 - 0.07 * 3)
    assert _schedule([*plain, "schedule.warmup_steps=4"]).at(1) == HyperParameters(0.8 * (2 / 4), 0.9, 5e-5, 1)
