"""The recipe's ``schedule.decay`` block: one class for each decay of the learning rate.

A new decay is registered by adding its class to `Decay`; docs/extending.md has a worked example.
"""

from typing import Annotated

from pydantic import Field

from configs.decays.decay_block import Cosine, DecayBlock, DecayTiming, Polynomial, StepDecay

__all__ = ["Cosine", "Decay", "DecayBlock", "DecayTiming", "Polynomial", "StepDecay"]

Decay = Annotated[Polynomial | StepDecay | Cosine, Field(discriminator="name")]
