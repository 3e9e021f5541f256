"""The recipe's blocks for images: which data set, and what is done to each image before the network sees it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.ideas import with_keys_of_ideas
from configs.registry import ALL_SOURCES
from configs.section import Section

Range = Annotated[tuple[float, float], Field(strict=False)]
PerChannel = Annotated[tuple[float, float, float], Field(strict=False)]


class Crop(Section):
    """How a training image is cut to the network's input size.

    ``none`` resizes the whole image. ``shift`` resizes it, then moves it by up to ``padding`` pixels and fills the gap
    with black. ``resized`` cuts a random rectangle and resizes that, which is the crop of ImageNet training.
    """

    kind: Literal["none", "shift", "resized"] = "resized"
    """Kind of random crop: none (whole image), shift (moved image) or resized (random rectangle)."""
    area: Range = (0.08, 1.0)
    """Smallest and largest share of the image's area that a resized crop covers, both in (0, 1]. A lower smallest share
    augments more."""
    aspect: Range = (0.75, 1.3333333333333333)
    """Smallest and largest ratio of width to height of a resized crop, both at most 10."""
    padding: int = Field(0, ge=0, le=64, json_schema_extra={"unit": "px"})
    """Largest number of pixels by which a shift moves the image, horizontally and vertically. 0 moves nothing."""

    def _require_agreement(self) -> None:
        for key, (low, high), top in (("area", self.area, 1.0), ("aspect", self.aspect, 10.0)):
            self.refuse(not 0 < low <= high <= top, key, f"0 < low <= high <= {top:g}")


@with_keys_of_ideas("data")
class Data(Section):
    """The images: which data set, how many, and what is done to each image before the network sees it."""

    name: str
    """Name of the packed data set: a folder in the cluster's paths.data. A recipe file that lies in a data set takes
    both from there."""
    source: Literal[ALL_SOURCES]  # type: ignore[valid-type]
    """Source that the data set was packed from; a data set from another source is refused. synthetic images are made in
    memory and never packed."""
    train_samples: int = Field(ge=1, json_schema_extra={"unit": "images"})
    """Number of training images. A data set with another number is refused."""
    eval_samples: int = Field(ge=1, json_schema_extra={"unit": "images"})
    """Number of evaluation images. A data set with another number is refused."""
    crop: Crop = Crop()
    flip: bool = True
    """Whether half of the training images, chosen at random, are mirrored."""
    eval_resize: int | None = Field(None, ge=8, le=2048, json_schema_extra={"unit": "px"})
    """Length of an evaluation image's shorter side before the centre crop. Larger values crop away more of the border.
    If null, data.eval_size."""
    eval_size: int | None = Field(None, ge=8, le=1024, json_schema_extra={"unit": "px"})
    """Side of the square input image in evaluations and exports; networks without a global pool take only that of
    training. If null, model.image_size."""
    eval_central_share: float | None = Field(None, gt=0, le=1)
    """Share of an evaluation image's width and of its height: the central part that is resized to data.eval_size
    without keeping its aspect. Excludes eval_resize. If null, the shorter side is resized, and the centre is
    cropped."""
    mean: PerChannel = (123.675, 116.28, 103.53)
    """Mean of red, green and blue (0 to 255), which is subtracted from each pixel; by default ImageNet's."""
    std: PerChannel = (58.395, 57.12, 57.375)
    """Standard deviation of red, green and blue, by which each pixel is divided after the mean is subtracted; by
    default ImageNet's."""
    shuffle_buffer: int = Field(4096, ge=1, json_schema_extra={"unit": "records"})
    """Size of a rank's shuffle buffer, from which its reader draws the next record at random. Larger values shuffle
    better but take more memory; the buffer never exceeds the rank's shard."""
    plain_from_epoch: int | None = Field(None, ge=2, json_schema_extra={"unit": "epoch"})
    """First epoch, counted from 1, whose training images are cropped as in evaluation, without flip and shuffling, and
    in no mixture with others. If null, images are augmented to the end."""
    keep_batches: bool = False
    """Whether the first epoch's training batches stay in memory, as augmented, and are trained on again in every later
    epoch. This saves reading and decoding; every epoch then has the same augmentation."""
    bad_record: Literal["stop", "skip"] = "stop"
    """What happens if a training image cannot be decoded: the run stops, or the image is left out."""

    def _require_agreement(self) -> None:
        is_no_folder = self.name in {"", ".", ".."} or "/" in self.name or not self.name.isprintable()
        self.refuse(is_no_folder, "name", "the name of a folder in paths.data, without a slash")
        has_two_crops = self.eval_resize is not None and self.eval_central_share is not None
        self.refuse(has_two_crops, "eval_resize", "null beside data.eval_central_share")
        self.refuse(min(self.std) < 1, "std", "three numbers of at least 1: pixels are 0 to 255, not 0 to 1")
