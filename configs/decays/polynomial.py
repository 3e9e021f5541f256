"""Polynomial decay of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.decays.decay_block import DecayTiming, TimedDecay, between
from configs.errors import ConfigError


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

    @model_validator(mode="after")
    def _one_spelling_of_the_end(self) -> Polynomial:
        if self.end_lr is not None and self.end_lr_ratio is not None:
            got = {"end_lr": self.end_lr, "end_lr_ratio": self.end_lr_ratio}
            raise ConfigError("end_lr", got, "one of end_lr and end_lr_ratio", "remove the other")
        return self

    def final_lr(self, base_lr: float) -> float:
        """See `DecayBlock`."""
        return base_lr * (self.end_lr_ratio or 0.0) if self.end_lr is None else self.end_lr

    def lr(self, base_lr: float, step: int, timing: DecayTiming) -> float:
        """See `DecayBlock`."""
        left = 1 - self.progress(step, timing)
        return between(base_lr, self.final_lr(base_lr), float(left**self.power))

    def logged(self, prefix: str, timing: DecayTiming) -> Mapping[str, Any]:
        """See `DecayBlock`."""
        return {
            f"{prefix}_learning_rate_decay_steps": timing.decay_steps,
            f"{prefix}_learning_rate_decay_poly_power": self.power,
        }
