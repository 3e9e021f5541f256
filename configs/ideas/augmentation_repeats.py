"""Repeated augmentation: an image comes several times in a micro-batch. The reader of the images does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import REFERENCE, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe

_KEY = "data.augmentation_repeats"


class AugmentationRepeatsKeys(Section):
    """The key of repeated augmentation."""

    augmentation_repeats: int = Field(1, ge=1, le=64)
    """How many times in succession a training image comes, each time cropped, flipped and augmented anew (Hoffer et
    al., arXiv:1901.09335; RASampler and ra_reps of torchvision). An epoch keeps its length: of every k images in their
    shuffled order one is trained on, k times, so an epoch has 1/k of the images, drawn anew for each epoch. The k are
    in one micro-batch; the last image of one that has no multiple of k images comes less often. Plain epochs
    (plain_from_epoch) have every image once. 1 repeats nothing."""


class AugmentationRepeats(Idea):
    """Repeated augmentation.

    A rank reads on as without it, so shards, passes and resumed positions stay as they are: of the records of a
    micro-batch, the first become its images, ``augmentation_repeats`` times each.
    """

    block = "data"
    keys = AugmentationRepeatsKeys
    rules = (exactly("augmentation_repeats", _KEY, 1, REFERENCE),)

    def rows(self, recipe: Recipe, batch_size: int) -> Sequence[int]:
        """Return the first records of a micro-batch, each several times."""
        repeats = AugmentationRepeatsKeys.of(recipe.data).augmentation_repeats
        return [row // repeats for row in range(batch_size)]

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse kept batches, which would have the same few images in every epoch."""
        allowed = f"false with {_KEY}, which trains on other images each epoch"
        recipe.refuse(recipe.data.keep_batches, "data.keep_batches", allowed)

    def require_batch(self, recipe: Recipe, per_rank_batch_size: int) -> None:
        """Refuse micro-batches of one image, or a part of its repeats."""
        repeats = AugmentationRepeatsKeys.of(recipe.data).augmentation_repeats
        allowed = f"micro-batches of at least {_KEY} ({repeats}) images, not of {per_rank_batch_size}"
        recipe.refuse(per_rank_batch_size < repeats, "batch.global_size", allowed)
