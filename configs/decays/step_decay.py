"""Step decay of the learning rate."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from configs.decays.decay_block import DecayBlock, DecayTiming
from configs.errors import ConfigError


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

    @field_validator("boundaries")
    @classmethod
    def _boundaries_rise(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)) or value[0] <= 0:
            raise ConfigError("boundaries", list(value), "epochs above 0, in ascending order")
        return value

    @property
    def boundary_epochs(self) -> tuple[float, ...]:
        """See `DecayBlock`."""
        return self.boundaries

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
