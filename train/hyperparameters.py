"""The log's hyperparameters, from the schedule and the optimizer that run. Pure: imports no framework."""

from __future__ import annotations

from configs.optimizers import Optimizer
from configs.plan import RunPlan
from configs.schema import Adam, Lars, Polynomial, Recipe, Sgd, StepDecay
from logs.events import HyperParameters
from train.schedule import LrSchedule

__all__ = ["logged_hyperparameters"]


def logged_hyperparameters(
    recipe: Recipe, plan: RunPlan, schedule: LrSchedule, optimizer: Optimizer
) -> HyperParameters:  # fmt: skip
    """Say what the log is to say; ``optimizer`` is the block that the optimizer was made from."""
    decay = recipe.schedule.decay
    by_steps = decay if isinstance(decay, StepDecay) else None
    return HyperParameters(
        global_batch_size=plan.global_batch_size,
        train_samples=recipe.data.train_samples,
        eval_samples=recipe.data.eval_samples,
        gradient_accumulation_steps=plan.accumulation_steps,
        bn_span=plan.per_rank_batch_size,
        opt_name=optimizer.name,
        base_lr=schedule.base_lr,
        end_lr=schedule.at(plan.warmup_steps + plan.decay_steps).lr,
        warmup_epochs=plan.warmup_steps / plan.steps_per_epoch,
        warmup_steps=plan.warmup_steps,
        weight_decay=schedule.weight_decay,
        momentum=schedule.momentum,
        label_smoothing=recipe.loss.label_smoothing,
        decay_steps=None if by_steps else plan.decay_steps,
        power=decay.power if isinstance(decay, Polynomial) else None,
        decay_boundary_epochs=by_steps.boundaries if by_steps else None,
        decay_factor=by_steps.factor if by_steps else None,
        epsilon=None if isinstance(optimizer, Sgd) else optimizer.epsilon,
        beta_2=optimizer.beta_2 if isinstance(optimizer, Adam) else None,
        trust_coefficient=optimizer.trust_coefficient if isinstance(optimizer, Lars) else None,
    )
