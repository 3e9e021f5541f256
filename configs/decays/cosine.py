"""Cosine decay of the learning rate."""

import math
from typing import Literal

from pydantic import Field

from configs.decays.decay_block import DecayTiming, TimedDecay, between


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
