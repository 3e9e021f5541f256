"""What an idea computes: a part with methods for the places of a step and an evaluation that it changes.

A part computes with the array operations of `train.engine.protocol.Engine`, which every framework offers. So a part
that needs nothing else stands beside its idea, and this package still imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from configs.plan import RunPlan
    from configs.schema import Cluster, Recipe

Array = Any
"""An array of the framework."""

LogitsOf = Callable[[Array], Array]
"""Takes normalised images, in the layout of the cluster file, and returns their logits."""


class Place(NamedTuple):
    """Where a part computes.

    Attributes:
        recipe: Has the keys of the part's idea.
        cluster: Has the layout of images.
        plan: Steps and epochs.
        rank: This rank.
        engine: The framework, a `train.engine.protocol.Engine`.
        network: The network that is trained, a `train.engine.protocol.TrainableNetwork`; None where an exported network
            is judged, which has the weights of an evaluation already.
    """

    recipe: Recipe
    cluster: Cluster
    plan: RunPlan
    rank: int
    engine: Any
    network: Any


class Part:
    """The part of an idea that changes nothing. The methods stand in the order in which a run comes to them."""

    def reset(self) -> None:
        """Set the state to what it is before the first step: weights and statistics of the network are those then."""

    def batch(self, step: int, number: int, batch: Any) -> Any:
        """Return the micro-batch ``number`` of a step, both counted from 0, as the network shall see it.

        The micro-batch is a `data.input.batches.TrainingBatch`.
        """
        return batch

    def gradients(self, gradients: Sequence[Array]) -> None:
        """Queue what changes the gradients in place: sums over the global batch, in the order of the parameters."""

    def updated(self, step: int) -> None:
        """Queue what follows the update of the weights in a step, counted from 0."""

    @property
    def evaluated_statistics(self) -> Mapping[str, Array]:
        """Return what is evaluated in place of the running statistics, by name; until an evaluation, the rank's own."""
        return {}

    def weights(self) -> AbstractContextManager[object]:
        """Return the context in which the network has the weights and the statistics of an evaluation."""
        return nullcontext()

    def logits(self, logits_of: LogitsOf) -> LogitsOf:
        """Return the function from images to logits that an evaluation judges, from that of the network."""
        return logits_of

    @property
    def evaluated_weights(self) -> Mapping[str, Array]:
        """Return what is evaluated in place of the float32 weights, by the parameter's name; the same on every rank."""
        return {}


def parts_of(place: Place) -> tuple[Part, ...]:
    """Return the parts of a recipe's ideas, in the order in which they act at one place; none in a rehearsal."""
    if place.cluster.rehearsal is not None:
        return ()
    parts = (idea.part_of(place) for idea in place.recipe.ideas)
    return tuple(part for part in parts if part is not None)
