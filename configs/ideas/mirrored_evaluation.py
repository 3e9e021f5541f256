"""Evaluations that see each image and its mirror: the mean of both logits.

*Source*: ``val_loop`` in FFCV's ``train_imagenet.py``, which adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from configs.ideas.idea import Idea
from configs.ideas.part import Array, LogitsOf, Part, Place
from configs.rule import AUGMENTATION, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe


class MirroredEvaluationKeys(Section):
    """The key of mirrored evaluations."""

    eval_flip: bool = False
    """Whether evaluations and predictions take the mean of the logits of each image and of its mirror, as FFCV does
    (lr_tta). They compute twice as long. Made for networks that learn from mirrors, see data.flip."""


class _Mirror(Part):
    """The mean of the logits of each image and of its mirror; ``axis`` of images goes from left to right."""

    def __init__(self, engine: Any, axis: int) -> None:
        self._engine, self._axis = engine, axis

    def logits(self, logits_of: LogitsOf) -> LogitsOf:
        """See `Part`."""

        def averaged(images: Array) -> Array:
            return (logits_of(images) + logits_of(self._engine.flip(images, self._axis))) * 0.5

        return averaged


class MirroredEvaluation(Idea):
    """Mirrored evaluations, which an exported network needs as well."""

    block = "data"
    keys = MirroredEvaluationKeys
    rules = (exactly("eval_flip", "data.eval_flip", False, AUGMENTATION),)

    def part_of(self, place: Place) -> Part:
        """Return what takes the mean of both logits."""
        return _Mirror(place.engine, place.cluster.engine.layout.index("W"))

    def inferences_per_image(self, recipe: Recipe) -> int:
        """Return 2: of the image and of its mirror."""
        return 2

    def described(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the entry by which `train.export.classify` takes the mean over mirrors."""
        return {"average_over_flips": self.is_on(recipe)}
