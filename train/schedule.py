"""Learning rate, momentum and weight decay as functions of the step. Pure: imports no framework."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from configs.plan import RunPlan
from configs.schema import Cosine, Polynomial, Recipe, Schedule, StepDecay

__all__ = ["HyperParameters", "LrSchedule", "resolve_schedule"]


@dataclass(frozen=True)
class HyperParameters:
    """What the optimizer uses in the 0-based ``step``."""

    lr: float
    momentum: float
    weight_decay: float
    step: int = 0


@dataclass(frozen=True)
class LrSchedule:
    """Linear warm-up, then a decay, both counted in steps from 0.

    Step 0 has B/W, the last step of the warm-up B, and the first step after the decay, as all later ones, the end
    rate E. Weight decay is constant, but under a lag of L steps it is wd (m-L)/m with m = min(i+1, W): its product
    with the rate, by which weights shrink, then warms up L steps later than the rate and stops L steps short.
    *Sources*, for 0-based step i, W warm-up and D decay steps:
    the 2019 record: lr(i) = B min(i+1, W)/W ((1-r)(1 - clamp(i-W, 0, D)/D)^2.2 + r), lag 1 (it counts i/W for
    weight decay and freezes that at (W-1)/W);
    NVIDIA's closed runs of v0.6 to v3.0: B n/W up to n = W, then E + (B-E)(1 - (n-W)/D)^2, with n = i + 1.
    """

    base_lr: float
    end_lr: float
    warmup_steps: int
    decay_steps: int
    decayed_lr: Callable[[int], float]
    momentum: float
    weight_decay: float
    weight_decay_lag_steps: int = 0

    def at(self, step: int) -> HyperParameters:
        """Give the values of 0-based ``step``."""
        assert step >= 0
        if not self.warmup_steps:
            return HyperParameters(self.decayed_lr(step), self.momentum, self.weight_decay, step)
        warm = min(step + 1, self.warmup_steps)
        lr = self.decayed_lr(step) * (warm / self.warmup_steps)
        share = (warm - self.weight_decay_lag_steps) / warm
        return HyperParameters(lr, self.momentum, self.weight_decay * share, step)


def resolve_schedule(recipe: Recipe, plan: RunPlan) -> LrSchedule:
    """Make the schedule of a recipe whose durations ``plan`` gives in steps."""
    return LrSchedule(
        base_lr=recipe.schedule.base_lr,
        end_lr=recipe.schedule.end_lr,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        decayed_lr=_decayed_lr(recipe.schedule, plan),
        momentum=recipe.optimizer.momentum,
        weight_decay=recipe.optimizer.weight_decay,
        weight_decay_lag_steps=recipe.schedule.weight_decay_lag_steps,
    )


def _decayed_lr(schedule: Schedule, plan: RunPlan) -> Callable[[int], float]:
    """Give the rate that the decay leaves as a function of the 0-based step; the base rate during the warm-up."""
    decay, base, end = schedule.decay, schedule.base_lr, schedule.end_lr
    if isinstance(decay, StepDecay):
        boundaries = [round(epoch * plan.steps_per_epoch) for epoch in decay.boundaries]
        rate = decay.factor
        return lambda step: float(base * rate ** bisect_right(boundaries, step))
    offset = decay.counts_from if isinstance(decay, Polynomial) else 0

    def progress(step: int) -> float:
        return min(max(step - plan.warmup_steps + offset, 0), plan.decay_steps) / plan.decay_steps

    def between(share: float) -> float:
        # Exactly the base rate at 1 and the end rate at 0: the official checker compares the latter with ==.
        return base * share + end * (1 - share)

    if isinstance(decay, Cosine):
        return lambda step: between(0.5 * (1 + math.cos(math.pi * progress(step))))
    power = decay.power
    return lambda step: between(float((1 - progress(step)) ** power))
