"""Ideas: what a recipe may ask of the training beyond network, data set, batch and schedule. One file for each.

An idea is registered by its row in `IDEAS`. Nobody else names it: keys, rules, plan, memory, checkpoints and exports
ask all ideas of a recipe. docs/extending.md has a worked example.
"""

from collections.abc import Callable
from typing import TypeVar

from configs.ideas.augmentation_repeats import AugmentationRepeats
from configs.ideas.auto_augment import AutoAugment
from configs.ideas.gradient_clipping import GradientClipping
from configs.ideas.growing_images import GrowingImages
from configs.ideas.idea import Idea
from configs.ideas.loss import LossIdea
from configs.ideas.mirrored_evaluation import MirroredEvaluation
from configs.ideas.mixing import Mixing
from configs.ideas.random_erasing import RandomErasing
from configs.ideas.stochastic_depth import StochasticDepth
from configs.ideas.weight_average import WeightAverage
from configs.section import Section

__all__ = ["IDEAS", "Idea", "with_keys_of_ideas"]

Block = TypeVar("Block", bound=Section)

IDEAS: tuple[Idea, ...] = (
    GrowingImages(),
    AugmentationRepeats(),
    AutoAugment(),
    RandomErasing(),
    Mixing(),
    StochasticDepth(),
    LossIdea(),
    GradientClipping(),
    WeightAverage(),
    MirroredEvaluation(),
)
"""Every idea, in the order in which several of them act at one place of a step."""


def with_keys_of_ideas(block: str) -> Callable[[type[Block]], type[Block]]:
    """Return a decorator that adds the keys of all its ideas to the class of a recipe's block, behind its own keys.

    A type checker does not see these keys: nobody but an idea reads them.
    """

    def add(own: type[Block]) -> type[Block]:
        bases = (*(idea.keys for idea in IDEAS if idea.block == block), own)
        return type(own.__name__, bases, {"__doc__": own.__doc__, "__module__": own.__module__})

    return add
