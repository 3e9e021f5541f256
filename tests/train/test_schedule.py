"""Schedules at hand-computed points."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.load import load_recipe
from configs.plan import plan_run
from configs.schema import Recipe
from tests.oracles import record_lr
from train.schedule import LrSchedule, resolve_schedule

RECORD = [
    "batch.global_size=86016", "data.train_samples=1281167", "run.epochs=90",
    "schedule.base_lr=13", "schedule.warmup_epochs=36",
    "schedule.decay={name: polynomial, power: 2.2, end_lr_ratio: 0.0025, steps: 780}",
]  # fmt: skip


def _schedule(overrides: list[str], world_size: int = 2) -> LrSchedule:
    recipe: Recipe = load_recipe("digits", overrides)
    return resolve_schedule(recipe, plan_run(recipe, world_size))


@pytest.mark.parametrize(
    ("step", "lr"),
    [(0, 0.02407), (269, 6.5), (539, 13.0), (540, 13.0), (700, 7.858), (930, 2.855), (1200, 0.2436), (1320, 0.0325),
     (1339, 0.0325), (5000, 0.0325)],
)  # fmt: skip
def test_the_records_rate_at_its_landmarks(step: int, lr: float) -> None:
    assert _schedule(RECORD, 2048).at(step).lr == pytest.approx(lr, rel=2e-4)


@given(st.integers(0, 1400))
def test_the_records_rate_at_any_step(step: int) -> None:
    assert _schedule(RECORD, 2048).at(step).lr == pytest.approx(record_lr(step), rel=1e-12)


def test_polynomial_without_steps_ends_with_the_run() -> None:
    schedule = _schedule(["schedule.decay={name: polynomial, power: 2, end_lr_ratio: 0.01}", "schedule.base_lr=2"])
    end = schedule.warmup_steps + schedule.decay_steps
    middle = schedule.warmup_steps + schedule.decay_steps // 2
    assert schedule.at(schedule.warmup_steps).lr == 2
    assert schedule.at(end).lr == pytest.approx(0.02)
    assert schedule.at(middle).lr == pytest.approx(2 * (0.99 * (1 - schedule.decay_steps // 2 / schedule.decay_steps) ** 2 + 0.01))


def test_step_decay_multiplies_at_each_boundary() -> None:
    schedule = _schedule(["schedule.decay={name: step, boundaries: [4, 8], factor: 0.1}", "schedule.base_lr=1"])
    rates = [schedule.at(step).lr for step in (4 * 19 - 1, 4 * 19, 8 * 19 - 1, 8 * 19)]
    assert rates == pytest.approx([1, 0.1, 0.1, 0.01])


def test_cosine_is_halfway_down_in_the_middle() -> None:
    schedule = _schedule(["schedule.decay={name: cosine, steps: 100}", "schedule.base_lr=1", "schedule.warmup_steps=20",
                          "schedule.warmup_epochs=null"])  # fmt: skip
    assert schedule.at(20 + 50).lr == pytest.approx(0.5)
    assert schedule.at(20 + 25).lr == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert schedule.at(500).lr == 0


def test_without_warmup_the_first_step_has_the_base_rate() -> None:
    assert _schedule(["schedule.warmup_epochs=0", "schedule.base_lr=0.5"]).at(0).lr == 0.5
