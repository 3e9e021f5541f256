"""Training images that grow from epoch to epoch: progressive resizing. It computes nothing in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import REFERENCE, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe

_KEY = "data.progressive_resizing"


class ProgressiveResizing(Section):
    """Training images that grow from epoch to epoch, up to ``model.image_size``.

    All images of an epoch have the size that is due at its end: ``initial_size`` in the share ``ramp_start_share`` of
    the run's epochs, ``model.image_size`` from ``ramp_end_share`` on, and in between a straight line, rounded to the
    nearest multiple of ``size_step`` (halves to the even multiple).
    """

    # *Source*: get_resolution in libffcv/ffcv-imagenet, train_imagenet.py (multiples of 32), whose six files for 16 to
    # 88 epochs all grow from 3/4 to 7/8 of them. ProgressiveResizing of mosaicml/composer rounds alike, but resizes
    # each step, and all images after the crop.

    initial_size: int = Field(ge=8, le=1024, json_schema_extra={"unit": "px"})
    """Side of the square training images of the first epochs: a multiple of size_step below model.image_size."""
    size_step: int = Field(ge=1, le=512, json_schema_extra={"unit": "px"})
    """Step by which sizes differ; all of them are multiples. Each further size is one more that the warm-up
    prepares."""
    ramp_start_share: float = Field(ge=0, lt=1)
    """Share of run.epochs that is done when the images begin to grow."""
    ramp_end_share: float = Field(gt=0, le=1)
    """Share of run.epochs that is done when the images have their full size."""

    def _require_agreement(self) -> None:
        allowed = f"more than ramp_start_share ({self.ramp_start_share:g})"
        self.refuse(self.ramp_end_share <= self.ramp_start_share, "ramp_end_share", allowed)


class GrowingImagesKeys(Section):
    """The key of growing images."""

    progressive_resizing: ProgressiveResizing | None = None
    """Sizes of the training images by epoch, for example {initial_size: 160, size_step: 32, ramp_start_share: 0.75,
    ramp_end_share: 0.875}. If null, model.image_size in every epoch."""


class GrowingImages(Idea):
    """Growing images. The ranks' pipelines make the images of each size (`data.input`)."""

    block = "data"
    keys = GrowingImagesKeys
    rules = (exactly("progressive_resizing", _KEY, None, REFERENCE, "one size in every epoch"),)

    def side(self, recipe: Recipe, epoch: int) -> int:
        """Return the side of an epoch's images, px."""
        resizing: ProgressiveResizing = recipe.at(_KEY)
        start, end, initial = resizing.ramp_start_share, resizing.ramp_end_share, resizing.initial_size
        share = min(max((epoch / recipe.run.epochs - start) / (end - start), 0.0), 1.0)
        return round((initial + share * (recipe.model.image_size - initial)) / resizing.size_step) * resizing.size_step

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse sizes that do not meet, and plain or kept images of other sizes than the last one."""
        plain, full = recipe.data.plain_from_epoch, recipe.model.image_size
        step, initial = recipe.at(f"{_KEY}.size_step"), recipe.at(f"{_KEY}.initial_size")
        recipe.refuse(full % step, "model.image_size", f"a multiple of {_KEY}.size_step ({step})")
        allowed = f"a multiple of size_step ({step}) below model.image_size ({full})"
        recipe.refuse(initial >= full or initial % step, f"{_KEY}.initial_size", allowed)
        recipe.refuse(recipe.data.keep_batches, "data.keep_batches", f"false with {_KEY}, which changes the images")
        allowed = f"null, or an epoch whose images have {full} px by {_KEY}"
        recipe.refuse(plain is not None and self.side(recipe, plain) < full, "data.plain_from_epoch", allowed)
