"""The arithmetic of a recipe at a world size: batches, steps, epochs, evaluations. Pure integers, no framework."""

from __future__ import annotations

from dataclasses import dataclass

from configs.errors import ConfigError
from configs.schema import Recipe

__all__ = ["BEGINNING", "Position", "RunPlan", "plan_run"]


@dataclass(frozen=True)
class Position:
    """Where a run stands: the 1-based epoch to go on in, and its next 0-based step, which is the steps done."""

    epoch: int
    step: int


BEGINNING = Position(1, 0)


@dataclass(frozen=True)
class RunPlan:
    """What follows from a recipe and a world size.

    An epoch is a rank's share of the data, ``train_samples // world_size`` images. A step takes a fixed number of
    them, and what an epoch leaves over is carried into the next, so steps an epoch vary by one and every rank takes
    the same number of steps. *Source*: the 2019 record's log, where 90 epochs of 14.88 steps are 1,340 steps.
    """

    world_size: int
    per_rank_batch_size: int
    accumulation_steps: int
    samples_per_rank: int
    epochs: int
    eval_every_epochs: int
    eval_first_epoch: int
    warmup_steps: int
    decay_steps: int
    max_steps: int | None

    @property
    def samples_per_rank_step(self) -> int:
        """Images that one rank reads for one step, over its accumulated micro-batches."""
        return self.per_rank_batch_size * self.accumulation_steps

    @property
    def global_batch_size(self) -> int:
        """Images a step over all ranks."""
        return self.samples_per_rank_step * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Nominal steps an epoch, rounded up: the unit in which recipes give warm-up and decay in epochs."""
        return _steps(self.samples_per_rank, self.samples_per_rank_step)

    def steps_after(self, epochs: int) -> int:
        """Count the steps taken when ``epochs`` epochs (0 or more) are over."""
        steps = _steps(epochs * self.samples_per_rank, self.samples_per_rank_step)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, if no target stops it."""
        return self.steps_after(self.epochs)

    def epoch_steps(self, epoch: int, first: int = 0) -> range:
        """Give the 0-based steps of 1-based ``epoch`` from ``first`` on; empty once ``max_steps`` is reached."""
        assert epoch >= 1
        return range(max(self.steps_after(epoch - 1), first), self.steps_after(epoch))

    @property
    def last_epoch(self) -> int:
        """The epoch in which the last step is taken."""
        epoch = 1
        while epoch < self.epochs and self.steps_after(epoch) < self.total_steps:
            epoch += 1
        return epoch

    @property
    def eval_epochs(self) -> tuple[int, ...]:
        """Epochs after which the model is evaluated; the last one always is."""
        last = self.last_epoch
        due = range(self.eval_first_epoch, last + 1, self.eval_every_epochs)
        return tuple(sorted({*due, last}))


def plan_run(recipe: Recipe, world_size: int) -> RunPlan:
    """Cut a recipe's global batch over ``world_size`` ranks.

    Raises:
        ConfigError: The global batch is not world size x per-rank batch x accumulation, a rank's share of the data is
            empty, or the warm-up is as long as the run.
    """
    per_rank, accumulation = _cut(recipe, world_size)
    samples_per_rank = recipe.data.train_samples // world_size
    if samples_per_rank < 1:
        raise ConfigError(
            "data.train_samples", recipe.data.train_samples, f"at least one image a rank ({world_size} ranks)"
        )
    warmup, decay = _durations(recipe, samples_per_rank, per_rank * accumulation)
    return RunPlan(
        world_size=world_size,
        per_rank_batch_size=per_rank,
        accumulation_steps=accumulation,
        samples_per_rank=samples_per_rank,
        epochs=recipe.run.epochs,
        eval_every_epochs=recipe.run.eval_every_epochs,
        eval_first_epoch=recipe.run.eval_first_epoch,
        warmup_steps=warmup,
        decay_steps=decay,
        max_steps=recipe.run.max_steps,
    )


def _steps(samples: int, samples_per_step: int) -> int:
    """Count the steps that take ``samples`` images, the last one begun counted whole."""
    return -(-samples // samples_per_step)


def _durations(recipe: Recipe, samples_per_rank: int, samples_per_step: int) -> tuple[int, int]:
    """Give warm-up and decay in steps; a recipe's epochs are nominal ones."""
    schedule = recipe.schedule
    warmup = schedule.warmup_steps
    if warmup is None:
        assert schedule.warmup_epochs is not None
        warmup = round(schedule.warmup_epochs * _steps(samples_per_rank, samples_per_step))
    planned = _steps(recipe.run.epochs * samples_per_rank, samples_per_step)
    if warmup >= planned:
        raise ConfigError(
            "schedule.warmup", f"{warmup} steps", f"fewer than the run's {planned} steps", "shorten it or add epochs"
        )
    return warmup, schedule.decay.length(planned - warmup)


def _cut(recipe: Recipe, world_size: int) -> tuple[int, int]:
    """Give (per-rank micro-batch, accumulation) whose product with the world size is the global batch."""
    batch = recipe.batch
    total, accumulation = batch.global_size, batch.accumulation_steps
    if batch.bn_span is not None:
        share = world_size * batch.bn_span
        steps, rest = divmod(total, share)
        if rest or not steps or accumulation not in (None, steps):
            raise _does_not_divide(total, world_size, batch.bn_span, accumulation)
        return batch.bn_span, steps
    steps = accumulation or 1
    per_rank, rest = divmod(total, world_size * steps)
    if rest or not per_rank:
        raise _does_not_divide(total, world_size, None, accumulation)
    return per_rank, steps


def _does_not_divide(total: int, world_size: int, span: int | None, accumulation: int | None) -> ConfigError:
    unit = world_size * (span or 1) * (accumulation or 1)
    below, above = total // unit * unit, (total // unit + 1) * unit
    parts = [f"{world_size} ranks"]
    parts += [f"{span} images a rank (batch.bn_span)"] if span else []
    parts += [f"{accumulation} accumulation steps"] if accumulation else []
    if span and accumulation:
        remedy = f"set batch.global_size to {unit}, or leave accumulation_steps out"
    else:
        remedy = "set batch.global_size to " + (f"{below} or {above}" if below else f"{above}")
    exactly = "exactly " if span and accumulation else "a multiple of "
    return ConfigError("batch.global_size", total, f"{exactly}{' x '.join(parts)} = {unit}", remedy)
