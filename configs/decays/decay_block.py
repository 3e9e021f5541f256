"""What every decay's block of keys has and says of itself, and the decays. Pure arithmetic; imports no framework."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

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


class Polynomial(TimedDecay):
    """From the base rate B down to the end rate E: B s + E (1-s) with s = (1-x)^power, x from 0 to 1, clamped.

    E is ``end_lr``, or ``end_lr_ratio`` of the base rate; 0 without either.
    """

    name: Literal["polynomial"]
    """Chooses polynomial decay."""
    power: float = Field(2.0, gt=0, le=10)
    """Exponent of the remaining share of the decay; 1 is linear."""
    end_lr_ratio: float | None = Field(None, ge=0, le=1)
    """Learning rate after the decay, as a share of base_lr. Excludes end_lr."""
    end_lr: float | None = Field(None, ge=0, le=1000)
    """Learning rate after the decay. Excludes end_lr_ratio."""

    def _require_agreement(self) -> None:
        has_both = None not in (self.end_lr, self.end_lr_ratio)
        self.refuse(has_both, "end_lr", "one of end_lr and end_lr_ratio", "remove the other")

    def final_lr(self, base_lr: float) -> float:
        """See `DecayBlock`."""
        return base_lr * (self.end_lr_ratio or 0.0) if self.end_lr is None else self.end_lr

    def lr(self, base_lr: float, step: int, timing: DecayTiming) -> float:
        """See `DecayBlock`."""
        left = 1 - self.progress(step, timing)
        return between(base_lr, self.final_lr(base_lr), float(left**self.power))

    def logged(self, prefix: str, timing: DecayTiming) -> Mapping[str, Any]:
        """See `DecayBlock`."""
        return {**super().logged(prefix, timing), f"{prefix}_learning_rate_decay_poly_power": self.power}


class StepDecay(DecayBlock):
    """The rate times ``factor`` at each boundary."""

    name: Literal["step"]
    """Chooses step decay."""
    boundaries: Annotated[tuple[float, ...], Field(strict=False, min_length=1)] = Field(
        json_schema_extra={"unit": "epochs"}
    )
    """Epochs, in ascending order, after which the learning rate is multiplied by factor. The steps of an epoch are
    rounded up; plan and run say where that shifts the epochs."""
    factor: float = Field(0.1, gt=0, lt=1)
    """Factor of the learning rate at each boundary."""

    def _require_agreement(self) -> None:
        is_wrong = self.boundaries != tuple(sorted(set(self.boundaries))) or self.boundaries[0] <= 0
        self.refuse(is_wrong, "boundaries", "epochs above 0, in ascending order")

    def final_lr(self, base_lr: float) -> float:
        """See `DecayBlock`."""
        return float(base_lr * self.factor ** len(self.boundaries))

    def lr(self, base_lr: float, step: int, timing: DecayTiming) -> float:
        """See `DecayBlock`; an epoch has the nominal number of steps."""
        boundaries = [round(epoch * timing.steps_per_epoch) for epoch in self.boundaries]
        return float(base_lr * self.factor ** bisect_right(boundaries, step))

    def logged(self, prefix: str, timing: DecayTiming) -> Mapping[str, Any]:
        """See `DecayBlock`."""
        return {
            "opt_learning_rate_decay_boundary_epochs": self.boundaries,
            "opt_learning_rate_decay_factor": self.factor,
        }


class Cosine(TimedDecay):
    """Half a cosine from the base rate to ``end_lr_ratio`` of it (Loshchilov and Hutter, arXiv:1608.03983)."""

    name: Literal["cosine"]
    """Chooses cosine decay."""
    end_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Learning rate after the decay, as a share of base_lr."""

    def final_lr(self, base_lr: float) -> float:
        """See `DecayBlock`."""
        return base_lr * self.end_lr_ratio

    def lr(self, base_lr: float, step: int, timing: DecayTiming) -> float:
        """See `DecayBlock`."""
        share = 0.5 * (1 + math.cos(math.pi * self.progress(step, timing)))
        return between(base_lr, self.final_lr(base_lr), share)
