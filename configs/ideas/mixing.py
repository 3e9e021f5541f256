"""MixUp and CutMix: training images that are mixed in pairs, with their labels. Their part is `train.ideas.mixing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import AUGMENTATION, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe


class MixingKeys(Section):
    """The keys of MixUp and CutMix."""

    mixup_alpha: float = Field(0.0, ge=0, le=100)
    """MixUp (Zhang et al., arXiv:1710.09412): each training image is added to another one of its micro-batch by shares
    from Beta(alpha, alpha), one draw a micro-batch, and so are the losses of both labels. Larger values mix more; 0
    mixes nothing. The training loss that is reported is that of the mixed images."""
    cutmix_alpha: float = Field(0.0, ge=0, le=100)
    """CutMix (Yun et al., arXiv:1905.04899): each training image takes a box from another one of its micro-batch, and
    the losses of both labels count by area. The share that stays is from Beta(alpha, alpha), and larger where the box
    would reach over the border. 0 cuts nothing. With mixup_alpha, each micro-batch is mixed in one of the two ways, by
    even odds."""


class Mixing(Idea):
    """MixUp and CutMix.

    A mixed label has three numbers: the classes of both images, and the share of the first. The part makes two
    micro-batches of images: the partners, and the mixed ones.
    """

    block = "data"
    keys = MixingKeys
    rules = (
        exactly("mixup", "data.mixup_alpha", 0, AUGMENTATION),
        exactly("cutmix", "data.cutmix_alpha", 0, AUGMENTATION),
    )
    part = "train.ideas.mixing"
    held_batches = 2

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse images with any number of labels, which have no pair of classes."""
        for key in (f"data.{name}" for name in self.off):
            recipe.refuse(recipe.loss.has_label_vectors and recipe.at(key), key, "0 where loss.kind is sigmoid")

    def label_shape(self, recipe: Recipe) -> tuple[int, ...]:
        """Return that of the classes of both images, and the share of the first."""
        return (3,)

    def require_batch(self, recipe: Recipe, per_rank_batch_size: int) -> None:
        """Refuse micro-batches of one image, which has no partner."""
        allowed = "2 or more images a micro-batch where data.mixup_alpha or data.cutmix_alpha mixes them"
        recipe.refuse(per_rank_batch_size == 1, "batch.global_size", allowed)
