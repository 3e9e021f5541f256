"""Stochastic depth: training leaves out the branches of residual blocks, at random and image by image.

The network's table has it, as a layer before each addition (`train.networks.arch`). It computes nothing in a step.
"""

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import REFERENCE, exactly
from configs.section import Section


class StochasticDepthKeys(Section):
    """The key of stochastic depth."""

    stochastic_depth: float = Field(0.0, ge=0, lt=1)
    """Share of the images for which a step leaves out the branch of the last residual block, so that only the shortcut
    is left; of block l of L, l / L of it (Huang et al., arXiv:1603.09382). The branches that stay are divided by their
    own share, and evaluations take all as they are. 0 leaves out none."""


class StochasticDepth(Idea):
    """Stochastic depth."""

    block = "model"
    keys = StochasticDepthKeys
    rules = (exactly("stochastic_depth", "model.stochastic_depth", 0.0, REFERENCE),)
