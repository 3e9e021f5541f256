"""Averages over steps of weights and running statistics. The part is `train.ideas.weight_average`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import REFERENCE, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe

_KEY = "optimizer.average_half_life_steps"


class WeightAverageKeys(Section):
    """The keys of averages over steps."""

    average_half_life_steps: float | None = Field(None, gt=0, json_schema_extra={"unit": "steps"})
    """Steps after which a step counts half in the averages (exponential moving averages, EMA) of weights and running
    statistics, which are evaluated and exported in place of those of the last step. If null, no average is kept."""
    average_every_steps: int = Field(1, ge=1)
    """Steps between two updates of the averages. Larger values save time."""


class WeightAverage(Idea):
    """Averages over steps."""

    block = "optimizer"
    keys = WeightAverageKeys
    rules = (exactly("weight_average", _KEY, None, REFERENCE),)
    part = "train.ideas.weight_average"

    def is_on(self, recipe: Recipe) -> bool:
        """Return whether the recipe sets a half-life."""
        return recipe.at(_KEY) is not None

    def require_place(self, recipe: Recipe, cluster: Cluster) -> None:
        """Refuse asynchronous ranks, which would have different averages."""
        recipe.refuse(not cluster.communication.is_synchronous, _KEY, "null where ranks are asynchronous")

    def begins(self, recipe: Recipe) -> tuple[str, float, int]:
        """Return that the second update is the first whose average is not the value itself."""
        every = WeightAverageKeys.of(recipe.optimizer).average_every_steps
        return "optimizer.average_every_steps", every, 2 * every - 1

    def variation(self, recipe: Recipe) -> str:
        """Return that only some steps move the averages."""
        return f"averaged weights ({_KEY})"

    def held_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return those of two copies: the averages, and in an evaluation the network's own weights and statistics."""
        return 2 * self.state_numbers(recipe, shapes, num_statistics)

    def state_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return those of the averages."""
        return sum(map(math.prod, shapes)) + num_statistics

    def renamed(self, settings: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, str]:
        """Return those of version 0.1.0, which kept the averages of the weights as the last momenta."""
        is_on = settings.get("optimizer", {}).get("average_half_life_steps") is not None
        if not is_on or any(name.startswith("evaluated/") for name in names):
            return {}
        weights = [name.removeprefix("weights/") for name in names if name.startswith("weights/")]
        first = sum(name.startswith("momenta/") for name in names) - len(weights)
        return {f"momenta/{first + number}": f"evaluated/{name}" for number, name in enumerate(weights)}
