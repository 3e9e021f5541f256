"""RandAugment and TrivialAugment: random operations on training images. `data.input.auto_augment` has the operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import AUGMENTATION, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe

LARGEST_MAGNITUDE = 30
"""The magnitude at which an operation changes an image most; at 0 it changes least."""


class AutoAugmentKeys(Section):
    """The keys of RandAugment and TrivialAugment."""

    auto_augment: Literal["none", "randaugment", "trivialaugment"] = "none"
    """Random operations (shear, translation, rotation, brightness, contrast, colour, sharpness, posterize, solarize,
    equalize, autocontrast, identity) on each training image, cropped and mirrored, by DALI: randaugment (Cubuk et al.,
    arXiv:1909.13719) or trivialaugment, which is TrivialAugmentWide (Müller and Hutter, arXiv:2103.10158; ta_wide of
    torchvision): one operation, of any magnitude."""
    randaugment_layers: int = Field(2, ge=1, le=16)
    """Operations that randaugment draws for each image and applies one after another."""
    randaugment_magnitude: int = Field(9, ge=0, le=LARGEST_MAGNITUDE)
    """Strength of the operations of randaugment, as in torchvision; three times the magnitude of timm."""
    randaugment_std: float = Field(0.0, ge=0, le=LARGEST_MAGNITUDE)
    """Standard deviation of the magnitude of randaugment, which is drawn for each operation and image from a normal
    distribution, rounded, and kept between 0 and 30; three times the mstd of timm. 0: no draws."""


class AutoAugment(Idea):
    """RandAugment and TrivialAugment. The ranks' pipelines apply them."""

    block = "data"
    keys = AutoAugmentKeys
    rules = (exactly("auto_augment", "data.auto_augment", "none", AUGMENTATION),)
    augmentation = "data.input.auto_augment"

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse keys of RandAugment that have no effect."""
        kind, *others = self.off
        for name in others if recipe.at(f"data.{kind}") != "randaugment" else ():
            key, default = f"data.{name}", self.off[name]
            recipe.refuse(recipe.at(key) != default, key, f"{default} unless data.auto_augment is randaugment")
