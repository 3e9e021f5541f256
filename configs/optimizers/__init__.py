"""The recipe's ``optimizer`` block: one class for each optimizer, and what they say as an idea.

A new optimizer is registered by adding its class to `Optimizer`; docs/extending.md has a worked example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import Field

from configs.ideas import Idea
from configs.optimizers.adam import Adam, AdamW
from configs.optimizers.lamb import Lamb
from configs.optimizers.lars import Lars
from configs.optimizers.muon import Muon
from configs.optimizers.optimizer_block import HyperParameters, OptimizerBlock, ParameterKinds
from configs.optimizers.sgd import Sgd
from configs.optimizers.shampoo import Shampoo
from configs.registry import ENGINES
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe

__all__ = [
    "OPTIMIZER",
    "Adam",
    "AdamW",
    "HyperParameters",
    "Lamb",
    "Lars",
    "Muon",
    "Optimizer",
    "OptimizerBlock",
    "ParameterKinds",
    "Sgd",
    "Shampoo",
]

Optimizer = Annotated[Lars | Sgd | Adam | AdamW | Lamb | Muon | Shampoo, Field(discriminator="name")]

_BLOCKS: tuple[type[OptimizerBlock], ...] = get_args(get_args(Optimizer)[0])


class OptimizerIdea(Idea):
    """The optimizer, which every recipe has; its keys are those of its block."""

    block = "optimizer"
    keys = Section
    rules = tuple(rule for block in _BLOCKS for rule in block.rules)

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse frozen layers where the place of a layer in the network decides how it is updated."""
        allowed = f"[] with optimizer.name: {recipe.optimizer.name}, which tells the first layer and the last apart"
        recipe.refuse(recipe.model.frozen and recipe.optimizer.tells_layers_apart, "model.frozen", allowed)

    def require_place(self, recipe: Recipe, cluster: Cluster) -> None:
        """Refuse an engine that has no such optimizer, and work to be divided among ranks without a common gradient."""
        key, block, engine = "optimizer.name", recipe.optimizer, cluster.engine.name
        alone = _listed([each for each in _BLOCKS if not each.is_shared])
        is_divided = block.is_shared and not cluster.communication.is_synchronous
        recipe.refuse(is_divided, key, f"{alone} where ranks are asynchronous")
        others = _listed([each for each in _BLOCKS if not each.engines or engine in each.engines])
        remedy = f"or set cluster.engine.name to {', '.join(block.engines)}"
        is_elsewhere = block.engines and engine not in (*block.engines, "timed")
        recipe.refuse(is_elsewhere, key, f"{others} under {ENGINES[engine].title}", remedy)

    def variation(self, recipe: Recipe) -> str:
        """Return what the block says."""
        words = recipe.optimizer.variation
        return words and f"the optimizer {recipe.optimizer.name}, which {words}"

    def held_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return those that the block counts."""
        return recipe.optimizer.held_numbers(shapes)

    def state_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return those of the moments; a state of other shapes comes on top."""
        return recipe.optimizer.num_moments * sum(map(math.prod, shapes))


def _listed(blocks: Sequence[type[OptimizerBlock]]) -> str:
    *others, last = sorted(get_args(each.model_fields["name"].annotation)[0] for each in blocks)
    return f"{', '.join(others)} or {last}"


OPTIMIZER = OptimizerIdea()
