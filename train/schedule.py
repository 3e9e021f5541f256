"""Learning rate, momentum and weight decay as functions of the step, and the log's hyperparameters.

Pure: imports no framework.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.blocks.training import Schedule
from configs.decays import DecayTiming
from configs.decays.decay_block import between
from configs.optimizers import HyperParameters, Optimizer, OptimizerBlock
from configs.plan import RunPlan
from configs.schema import Recipe

__all__ = ["HyperParameters", "LrSchedule", "logged_hyperparameters", "resolve_schedule"]


@dataclass(frozen=True)
class LrSchedule:
    """Warm-up, then a decay, both counted in steps from 0.

    With base rate B, end rate E and W warm-up steps from rate A, step i of the warm-up has the rate A + (B-A) s with
    s = (i+1)/W, or for a cosine s = (1 - cos(pi (i+1)/W))/2. So a linear warm-up from 0 has B/W at step 0, the last
    step of a warm-up has B, and every step after the decay has E. Weight decay wd is constant without a lag. With a lag
    of L steps it is wd (m-L)/m with m = min(i+1, W). Weights shrink by the product of weight decay and rate. With a
    lag, this product warms up L steps later than the rate does, and stays below its full value for the rest of the run.
    The optimizer may adapt both to the rate.

    Where the rate changes once an epoch, ``epoch_of`` tells the epoch of a step, and all is counted in epochs: epoch e
    of the warm-up, from 0, has the share s = e/W, and the decay takes the epoch.

    *Sources*, for 0-based step i, W warm-up and D decay steps:
    the 2019 record: lr(i) = B min(i+1, W)/W ((1-r)(1 - clamp(i-W, 0, D)/D)^2.2 + r), lag 1 (the record's weight decay
    warms up as i/W, and keeps (W-1)/W after the warm-up);
    NVIDIA's closed runs of v0.6 to v3.0: B n/W up to n = W, then E + (B-E)(1 - (n-W)/D)^2, with n = i + 1;
    cosine warm-up: SIAT's open run of v0.7, 0.8 + 24.2 (1 + cos(pi + pi n/W))/2.

    Attributes:
        block: The recipe's block: rates and shape of the warm-up, and the decay.
        optimizer: The recipe's block, with momentum and weight decay.
        timing: Durations of warm-up and decay, in steps, or in epochs where the rate changes once an epoch.
        epoch_of: Returns the 0-based epoch of a step. If None, the rate changes at every step.
    """

    block: Schedule
    optimizer: OptimizerBlock
    timing: DecayTiming
    epoch_of: Callable[[int], int] | None = None

    def at(self, step: int) -> HyperParameters:
        """Return the values of 0-based ``step``."""
        assert step >= 0
        weight_decay = self.optimizer.weight_decay
        if self.timing.warmup_steps:
            warm = min(step + 1, self.timing.warmup_steps)
            weight_decay *= (warm - self.block.weight_decay_lag_steps) / warm
        values = HyperParameters(self._lr(step), self.optimizer.momentum, weight_decay, step)
        return self.optimizer.adapted(values, self._lr(step - 1) if step else 0.0, self.block.base_lr)

    def _lr(self, step: int) -> float:
        at, risen = (step, step + 1) if self.epoch_of is None else (self.epoch_of(step),) * 2
        block, warmup_steps = self.block, self.timing.warmup_steps
        lr = block.decay.lr(block.base_lr, at, self.timing)
        if warmup_steps:
            share = min(risen, warmup_steps) / warmup_steps
            if block.warmup_shape == "cosine":
                share = (1 - math.cos(math.pi * share)) / 2
            lr = between(lr, block.warmup_start_lr, share)
        return lr


def resolve_schedule(recipe: Recipe, plan: RunPlan) -> LrSchedule:
    """Return the schedule of a recipe whose durations ``plan`` has in steps."""
    timing, epoch_of = _timing(plan), None
    if recipe.schedule.changes_every == "epoch":
        warmup = int(recipe.schedule.warmup_epochs or 0)
        timing = DecayTiming(warmup, plan.epochs - warmup, 1)
        ends = [plan.steps_after(epoch) for epoch in range(1, plan.epochs + 1)]
        epoch_of = partial(bisect_right, ends)
    return LrSchedule(recipe.schedule, recipe.optimizer, timing, epoch_of)


def _timing(plan: RunPlan) -> DecayTiming:
    return DecayTiming(plan.warmup_steps, plan.decay_steps, plan.steps_per_epoch)


def logged_hyperparameters(
    recipe: Recipe, plan: RunPlan, schedule: LrSchedule, optimizer: Optimizer
) -> dict[str, Any]:  # fmt: skip
    """Return the hyperparameters that a run logs, in ruleset 4.0.0's spelling, key -> value, in the log's order.

    Args:
        recipe: Data, loss and decay of the run.
        plan: Batches and durations of the run.
        schedule: The schedule that the run follows.
        optimizer: The block that the running optimizer was made from, so that the log tells what runs.
    """
    prefix = optimizer.log_prefix
    return {
        "global_batch_size": plan.global_batch_size,
        "train_samples": recipe.data.train_samples,
        "eval_samples": recipe.data.eval_samples,
        "gradient_accumulation_steps": plan.accumulation_steps,
        "model_bn_span": plan.norm_span,
        "opt_name": optimizer.name,
        f"{prefix}_base_learning_rate": schedule.block.base_lr,
        f"{prefix}_end_learning_rate": schedule.at(plan.warmup_steps + plan.decay_steps).lr,
        f"{optimizer.warmup_log_prefix}_learning_rate_warmup_epochs": plan.warmup_steps / plan.steps_per_epoch,
        "opt_learning_rate_warmup_steps": plan.warmup_steps,
        **recipe.schedule.decay.logged(prefix, _timing(plan)),
        f"{prefix}_weight_decay": schedule.optimizer.weight_decay,
        optimizer.momentum_log_key: schedule.optimizer.momentum,
        **optimizer.logged(),
        **{key: value for idea in recipe.ideas for key, value in idea.logged(recipe).items()},
    }
