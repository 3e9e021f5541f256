"""The arithmetic of a recipe at a world size: batches, steps, epochs, evaluations.

The module computes with integers only and imports no framework.
"""

from dataclasses import dataclass

from configs.arguments import counted
from configs.errors import ConfigError
from configs.schema import Recipe


@dataclass(frozen=True)
class Position:
    """The point that a run has reached.

    Attributes:
        epoch: The epoch, counted from 1, in which the run continues.
        step: The next step, counted from 0, which is also the number of steps taken.
    """

    epoch: int
    step: int


BEGINNING = Position(1, 0)

_SHIFT_EPOCHS = 0.1
"""Epochs by which the schedule may be late without a word."""


@dataclass(frozen=True)
class RunPlan:
    """The batches, steps and evaluations that follow from a recipe and a world size.

    ``norm_ranks`` neighbouring ranks compute the statistics of a batch norm together, over all of their images.

    In an epoch, a rank reads its share of the data: ``train_samples // world_size`` images. A step takes a fixed number
    of images. Images that are left over at the end of an epoch begin the next epoch, so the number of steps in an epoch
    varies by one, and every rank takes the same number of steps. *Source*: the 2019 record's log, where 90 epochs of
    14.88 steps are 1,340 steps.
    """

    world_size: int
    per_rank_batch_size: int
    accumulation_steps: int
    norm_ranks: int
    samples_per_rank: int
    epochs: int
    eval_every_epochs: int
    eval_first_epoch: int
    warmup_steps: int
    decay_steps: int
    max_steps: int | None

    @property
    def samples_per_rank_step(self) -> int:
        """Images that one rank reads for one step, over all of its micro-batches."""
        return self.per_rank_batch_size * self.accumulation_steps

    @property
    def norm_span(self) -> int:
        """Images over which a batch norm computes its statistics."""
        return self.per_rank_batch_size * self.norm_ranks

    @property
    def global_batch_size(self) -> int:
        """Images of one step, over all ranks."""
        return self.samples_per_rank_step * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Nominal steps of an epoch, rounded up. A recipe's epochs of warm-up and decay are counted in this unit."""
        return _steps(self.samples_per_rank, self.samples_per_rank_step)

    def steps_after(self, epochs: int) -> int:
        """Return the number of steps taken at the end of the first ``epochs`` epochs (0 or more)."""
        steps = _steps(epochs * self.samples_per_rank, self.samples_per_rank_step)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run if it does not reach its target earlier."""
        return self.steps_after(self.epochs)

    def epoch_steps(self, epoch: int, first: int = 0) -> range:
        """Return the steps, counted from 0, of an epoch, counted from 1; empty after ``max_steps`` steps.

        Args:
            epoch: The epoch.
            first: Steps below this one are left out.
        """
        assert epoch >= 1
        return range(max(self.steps_after(epoch - 1), first), self.steps_after(epoch))

    @property
    def stepless_epochs(self) -> str | None:
        """Say that epochs without a step are certain, because a batch holds more images than an epoch; else None."""
        images = self.samples_per_rank * self.world_size
        if self.global_batch_size <= images or self.max_steps is not None:
            return None
        return (
            f"batch.global_size={self.global_batch_size:,} is more than the {images:,} images of an epoch: a run of "
            f"{counted(self.epochs, 'epoch')} takes {counted(self.steps_after(self.epochs), 'step')}; lower the batch"
        )

    @property
    def last_epoch(self) -> int:
        """Number of the epoch, counted from 1, that holds the last step."""
        epoch = 1
        while epoch < self.epochs and self.steps_after(epoch) < self.total_steps:
            epoch += 1
        return epoch

    @property
    def eval_epochs(self) -> tuple[int, ...]:
        """Epochs, counted from 1, that end with an evaluation; the last epoch always does."""
        last = self.last_epoch
        due = range(self.eval_first_epoch, last + 1, self.eval_every_epochs)
        return tuple(sorted({*due, last}))


def plan_run(recipe: Recipe, world_size: int) -> RunPlan:
    """Return the plan of a recipe on ``world_size`` ranks.

    Raises:
        ConfigError: The global batch is not world size x per-rank batch x accumulation, a rank's share of the data is
            empty, an idea cannot be had with the micro-batches, or the warm-up is as long as the run.
    """
    per_rank, accumulation, norm_ranks = _cut(recipe, world_size)
    samples_per_rank = recipe.data.train_samples // world_size
    allowed = f"at least one image per rank ({world_size} ranks)"
    recipe.refuse(samples_per_rank < 1, "data.train_samples", allowed)
    for idea in recipe.ideas:
        idea.require_batch(recipe, per_rank)
    warmup, decay = _durations(recipe, samples_per_rank, per_rank * accumulation)
    return RunPlan(
        world_size=world_size,
        per_rank_batch_size=per_rank,
        accumulation_steps=accumulation,
        norm_ranks=norm_ranks,
        samples_per_rank=samples_per_rank,
        epochs=recipe.run.epochs,
        eval_every_epochs=recipe.run.eval_every_epochs,
        eval_first_epoch=recipe.run.eval_first_epoch,
        warmup_steps=warmup,
        decay_steps=decay,
        max_steps=recipe.run.max_steps,
    )


def schedule_remarks(recipe: Recipe, plan: RunPlan) -> list[str]:
    """Return a line for each key whose epochs end `_SHIFT_EPOCHS` and a step after those of the images, or never begin.

    The schedule counts in `RunPlan.steps_per_epoch`, as published runs of large batches do. A run that ``max_steps``
    cuts short on purpose is taken as a whole.
    """
    steps, schedule = plan.samples_per_rank / plan.samples_per_rank_step, recipe.schedule
    is_by_step, longer, lines = schedule.changes_every == "step", plan.steps_per_epoch / steps, []
    boundaries = schedule.at("decay.boundaries") or ()
    given = {"warmup_epochs": (schedule.warmup_epochs or 0,), "decay.boundaries": boundaries}
    for key, epochs in given.items():
        # Who followed this advice gave fractions that come after whole epochs of images.
        is_meant = all(abs(each * longer - round(each * longer)) < 1e-3 for each in epochs)  # noqa: PLR2004
        if is_by_step and max(epochs, default=0) * (longer - 1) > max(_SHIFT_EPOCHS, 1 / steps) and not is_meant:
            here, wanted = (", ".join(f"{each * factor:.4g}" for each in epochs) for factor in (longer, 1 / longer))
            lines.append(
                f"schedule.{key} comes after {here} epochs of images: its epochs have {plan.steps_per_epoch} steps, "
                f"and the images are {steps:.4g} steps; for epochs of images, give {wanted}"
            )
    due = [each for idea in recipe.ideas if (each := idea.begins(recipe))]
    for epoch in boundaries:
        step = round(epoch * plan.steps_per_epoch) if is_by_step else plan.steps_after(round(epoch))
        due.append(("schedule.decay.boundaries", epoch, step))
    total = _steps(plan.epochs * plan.samples_per_rank, plan.samples_per_rank_step)
    return lines + [
        f"{key}: {value:g} comes into effect after step {step:,}, and the run has {total:,} steps, so that it never "
        f"does; give a smaller value, or more than run.epochs={plan.epochs}"
        for key, value, step in due
        if step >= total
    ]


def _steps(samples: int, samples_per_step: int) -> int:
    """Return the number of steps that read ``samples`` images; a last step with fewer images counts in full."""
    return -(-samples // samples_per_step)


def _durations(recipe: Recipe, samples_per_rank: int, samples_per_step: int) -> tuple[int, int]:
    """Return the steps of the warm-up and of the decay; a recipe's epochs count as nominal ones."""
    schedule = recipe.schedule
    warmup = schedule.warmup_steps
    if warmup is None:
        assert schedule.warmup_epochs is not None
        warmup = round(schedule.warmup_epochs * _steps(samples_per_rank, samples_per_step))
    planned = _steps(recipe.run.epochs * samples_per_rank, samples_per_step)
    key = f"schedule.{'warmup_steps' if schedule.warmup_epochs is None else 'warmup_epochs'}"
    allowed = f"fewer steps than the run has ({planned}, by run.epochs: {recipe.run.epochs})"
    recipe.refuse(warmup >= planned, key, allowed, f"set {key}=0, too, or run more epochs")
    return warmup, schedule.decay.length(planned - warmup)


def _cut(recipe: Recipe, world_size: int) -> tuple[int, int, int]:
    """Return images of a rank's micro-batch, micro-batches a step, and ranks that share a batch norm's statistics.

    The product of the first two and the world size is the global batch. Ranks share statistics only where each of them
    has fewer images in a step than ``bn_span``.
    """
    batch = recipe.batch
    total, span, accumulation = batch.global_size, batch.bn_span, batch.accumulation_steps
    steps = accumulation or 1
    if span is not None and total >= world_size * span:
        steps, rest = divmod(total, world_size * span)
        if rest or accumulation not in (None, steps):
            raise _does_not_divide(total, world_size, span, accumulation)
        return span, steps, 1
    per_rank, rest = divmod(total, world_size * steps)
    if rest or not per_rank:
        raise _does_not_divide(total, world_size, span, accumulation)
    norm_ranks, rest = divmod(span or per_rank, per_rank)
    if rest or (steps > 1 and norm_ranks > 1) or world_size % norm_ranks:
        raise _does_not_divide(total, world_size, span, accumulation)
    return per_rank, steps, norm_ranks


def _does_not_divide(total: int, world_size: int, span: int | None, accumulation: int | None) -> ConfigError:
    unit = world_size * (span or 1) * (accumulation or 1)
    below, above = total // unit * unit, (total // unit + 1) * unit
    parts = [counted(world_size, "rank")]
    parts += [f"{span} images per rank (batch.bn_span)"] if span else []
    parts += [f"{accumulation} accumulation steps"] if accumulation else []
    sizes = [unit] if span and accumulation else [size for size in (below, above) if size]
    remedy = f"set batch.global_size to {' or '.join(map(str, sizes))}"
    exactly = "exactly " if span and accumulation else "a multiple of "
    return ConfigError("batch.global_size", total, f"{exactly}{' x '.join(parts)} = {unit}", remedy)
