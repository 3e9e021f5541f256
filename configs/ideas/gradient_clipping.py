"""Clipping of the gradient by its norm: a mean gradient that is longer than a limit is shortened to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from configs.ideas.idea import Idea
from configs.ideas.part import Array, Part, Place
from configs.rule import REFERENCE, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe

_KEY = "optimizer.clip_norm"
_EPSILON = 1e-6
"""Added to the norm, as PyTorch does, so that nothing is divided by 0."""


class GradientClippingKeys(Section):
    """The key of clipping by the norm."""

    clip_norm: float | None = Field(None, gt=0, le=1e6)
    """Largest L2 norm of the gradient of all parameters together, the mean over the global batch, without weight decay.
    A longer one is scaled down to it before the update. If null, it is used as it is."""


class _Clipping(Part):
    """The gradient times min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it.

    All ranks have the same sums of gradients, and so the same norm. The host reads nothing. A sum that is not finite
    stays so, or makes all of them NaN, by which an optimizer notices an overflow in float16.
    """

    def __init__(self, engine: Any, limit: float, rescale: float) -> None:
        self._engine, self._limit, self._rescale = engine, limit, rescale

    def gradients(self, gradients: Sequence[Array]) -> None:
        """See `Part`; the norm is computed in float32, in which the squares of float16 numbers do not overflow."""
        engine = self._engine
        norm = engine.norm(gradients) * self._rescale
        factor = (self._limit / (norm + _EPSILON)).clip(0, 1)
        for gradient in gradients:
            engine.overwrite(gradient, engine.to_float32(gradient) * factor)


class GradientClipping(Idea):
    """Clipping by the norm."""

    block = "optimizer"
    keys = GradientClippingKeys
    rules = (exactly("opt_gradient_clip_norm", _KEY, None, REFERENCE),)

    def require_place(self, recipe: Recipe, cluster: Cluster) -> None:
        """Refuse asynchronous ranks, which have no common gradient."""
        recipe.refuse(not cluster.communication.is_synchronous, _KEY, "null where ranks are asynchronous")

    def logged(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the limit, by MLPerf's name."""
        return {"opt_gradient_clip_norm": recipe.at(_KEY)}

    def part_of(self, place: Place) -> Part:
        """See `Idea`."""
        return _Clipping(place.engine, place.recipe.at(_KEY), 1 / place.plan.global_batch_size)
