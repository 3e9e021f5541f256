"""What every decay's block of keys has, and what it says of itself. Pure arithmetic; imports no framework."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from configs.section import Section


@dataclass(frozen=True)
class DecayTiming:
    """Durations of a run, in steps.

    Attributes:
        warmup_steps: Steps of the warm-up; the decay begins after them.
        decay_steps: Steps from the end of the warm-up to the end of the decay.
        steps_per_epoch: Nominal steps of an epoch.
    """

    warmup_steps: int
    decay_steps: int
    steps_per_epoch: int

    def progress(self, step: int, offset: int = 0) -> float:
        """Return the share of the decay that is over at 0-based ``step``: 0 during the warm-up, 1 after the decay."""
        return min(max(step - self.warmup_steps + offset, 0), self.decay_steps) / self.decay_steps


def between(base_lr: float, end_lr: float, share: float) -> float:
    """Return a learning rate between ``base_lr`` (share 1) and ``end_lr`` (share 0).

    Both ends are exact: the official checker compares the end rate with ``==``.
    """
    return base_lr * share + end_lr * (1 - share)


class DecayBlock(Section):
    """The keys of a decay, its learning rate at every step, and what it logs.

    A subclass adds ``name: Literal["..."]`` and its own keys, and defines `final_lr` and `lr`.
    """

    @property
    def boundary_epochs(self) -> tuple[float, ...]:
        """Return the epochs, in the nominal unit, at which keys let something happen."""
        return ()

    def length(self, available_steps: int) -> int:
        """Return the steps of the decay, given the steps from the end of the warm-up to the end of the run."""
        return available_steps

    def final_lr(self, base_lr: float) -> float:
        """Return the learning rate after the decay."""
        raise NotImplementedError

    def lr(self, base_lr: float, step: int, timing: DecayTiming) -> float:
        """Return the learning rate at 0-based ``step``: ``base_lr`` at every step of the warm-up.

        The factor by which the warm-up raises the rate is applied by `train.schedule`.
        """
        raise NotImplementedError

    def logged(self, prefix: str, timing: DecayTiming) -> Mapping[str, Any]:
        """Return the decay's entries in the MLPerf log, key -> value.

        Args:
            prefix: The optimizer's prefix of log keys, for example ``lars_opt``.
            timing: Durations of the run.
        """
        return {f"{prefix}_learning_rate_decay_steps": timing.decay_steps}


class TimedDecay(DecayBlock):
    """A decay whose length and beginning are keys."""

    steps: int | None = Field(None, ge=1)
    """Length of the decay in steps. If null, it lasts from the end of the warm-up to the last step."""
    counts_from: Literal[0, 1] = 0
    """Progress, in steps, at the first step after the warm-up: 0 repeats base_lr there, 1 is below it."""
    begins: Literal["after_warmup", "at_start"] = "after_warmup"
    """Where the decay begins: at the end of the warm-up, or with the run, so that the rate falls below base_lr by the
    progress of the warm-up at its end, as in timm's code."""

    def progress(self, step: int, timing: DecayTiming) -> float:
        """Return the share of the decay that is over at 0-based ``step``: 0 during the warm-up, 1 after the decay."""
        if self.begins == "at_start" and step >= timing.warmup_steps:
            timing = replace(timing, warmup_steps=0, decay_steps=timing.warmup_steps + timing.decay_steps)
        return timing.progress(step, self.counts_from)

    def length(self, available_steps: int) -> int:
        """See `DecayBlock`."""
        return available_steps if self.steps is None else self.steps
