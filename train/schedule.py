"""Learning rate, momentum and weight decay as functions of the step. Pure: imports no framework."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from configs.plan import RunPlan
from configs.schema import Cosine, Polynomial, Recipe, StepDecay

__all__ = ["HyperParameters", "LrSchedule", "resolve_schedule"]


@dataclass(frozen=True)
class HyperParameters:
    """What the optimizer uses in one step."""

    lr: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class LrSchedule:
    """Linear warm-up, then a decay, both counted in steps from 0.

    Step 0 has ``base_lr / warmup_steps``, the last step of the warm-up and the one after it ``base_lr`` (the decay
    starts at factor 1), and every step from ``warmup_steps + decay_steps`` on the end rate.
    *Source*: the 2019 record's logged schedule: lr(i) = B min(i+1, W)/W ((1-r)(1 - clamp(i-W, 0, D)/D)^p + r).
    """

    base_lr: float
    warmup_steps: int
    decay_steps: int
    factor: Callable[[int], float]
    momentum: float
    weight_decay: float

    def at(self, step: int) -> HyperParameters:
        """Give the values of 0-based ``step``."""
        assert step >= 0
        warm = min(step + 1, self.warmup_steps) / self.warmup_steps if self.warmup_steps else 1.0
        return HyperParameters(self.base_lr * warm * self.factor(step), self.momentum, self.weight_decay)


def resolve_schedule(recipe: Recipe, plan: RunPlan) -> LrSchedule:
    """Make the schedule of a recipe whose durations ``plan`` gives in steps."""
    return LrSchedule(
        base_lr=recipe.schedule.base_lr,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        factor=_decay_factor(recipe.schedule.decay, plan),
        momentum=recipe.optimizer.momentum,
        weight_decay=recipe.optimizer.weight_decay,
    )


def _decay_factor(decay: Polynomial | StepDecay | Cosine, plan: RunPlan) -> Callable[[int], float]:
    """Give the decay's multiplier of the base rate as a function of the 0-based step."""
    if isinstance(decay, StepDecay):
        boundaries = [round(epoch * plan.steps_per_epoch) for epoch in decay.boundaries]
        rate = decay.factor
        return lambda step: rate ** bisect_right(boundaries, step)
    end = decay.end_lr_ratio

    def progress(step: int) -> float:
        return min(max(step - plan.warmup_steps, 0), plan.decay_steps) / plan.decay_steps

    if isinstance(decay, Cosine):
        return lambda step: end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress(step)))
    power = decay.power
    return lambda step: float((1 - end) * (1 - progress(step)) ** power + end)
