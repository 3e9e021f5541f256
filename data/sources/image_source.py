"""The interface that every source of images fills, and what several of them need: JPEG encoding, resizing, digests."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from configs.errors import UserError
from configs.registry import PackedSource

DEFAULT_QUALITY = 95
"""JPEG quality if the user names none."""

_NAMED_AT_MOST = 5

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Settings:
    """The options of ``./run.sh prepare`` that change what a source gives; None where the user gave none.

    Attributes:
        size: Shorter side of the packed images, px.
        quality: JPEG quality, 50 to 100.
        train: Number of training images.
        eval: Number of evaluation images.
        classes: Number of classes.
        labels: Table of class -> labels, which gives every image several labels (`data.sources.tables`).
        seed: Seed of generated images.
    """

    size: int | None = None
    quality: int | None = None
    train: int | None = None
    eval: int | None = None
    classes: int | None = None
    labels: Path | None = None
    seed: int = 1


@dataclass(frozen=True)
class SourceSplit:
    """The training or the evaluation images, in the source's own order.

    Attributes:
        labels: The class of each image; in a source with several labels an image, a 0 or 1 for each class.
        jpeg: Returns the encoded bytes of the image at an index. Several processes call it at the same time.
    """

    labels: Sequence[int] | Sequence[tuple[int, ...]]
    jpeg: Callable[[int], bytes]


@dataclass(frozen=True)
class Source:
    """The images to pack.

    Attributes:
        kind: What `data.source` of a recipe for this data set must say.
        description: What was packed, in one line, for the manifest.
        fingerprint: Equal fingerprints mean equal images and labels; made by `fingerprint`.
        class_names: Name of each class; a label is an index into them.
        train: Training images.
        eval: Evaluation images.
    """

    kind: PackedSource
    description: str
    fingerprint: str
    class_names: tuple[str, ...]
    train: SourceSplit
    eval: SourceSplit


class SourceModule(Protocol):
    """The four names that every module in `configs.registry.SOURCES` defines.

    ``./run.sh prepare --help`` prints the docstring of the module, so that it speaks to the user.
    """

    LAYOUT: str
    """The argument SOURCE of ``./run.sh prepare`` in a few words, for messages: ``train.npz and val.npz``."""

    OPTIONS: tuple[str, ...]
    """The options of ``./run.sh prepare`` that the source takes, as fields of `Settings`; every source takes a seed."""

    def recognises(self, name: str) -> bool:
        """Return whether SOURCE is this kind of source; reads no more than names of files."""

    def open_source(self, name: str, settings: Settings) -> Source:
        """Open the source that ``recognises`` accepted.

        Raises:
            UserError: A file is missing, damaged or does not belong, or a setting cannot be met.
        """


def fingerprint(*parts: object) -> str:
    """Return a digest of everything that decides the packed images: numbers, texts, and lists of them."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def sha256_of(array: Pixels) -> str:
    """Return the digest of an array's bytes, as a part of a `fingerprint`."""
    return hashlib.sha256(array.tobytes()).hexdigest()


def array_split(images: Pixels, labels: Pixels, size: int, quality: int) -> SourceSplit:
    """Return the split of images that lie in memory; grey images become RGB JPEGs.

    Args:
        images: Pixels [N, H, W] or [N, H, W, 3].
        labels: The class of each image [N].
        size: Shorter side of the packed images, px.
        quality: JPEG quality.
    """

    def jpeg(index: int) -> bytes:
        return encode_jpeg(resize_image(Image.fromarray(images[index]), size).convert("RGB"), quality)

    return SourceSplit(labels.tolist(), jpeg)


def check_size(size: int, least: int) -> None:
    """Raise UserError if ``--size`` would shrink images whose shorter side is ``least`` px."""
    if size < least:
        raise UserError(f"--size {size}: smaller than the images; allowed: at least {least} px, or leave it out")


def resize_image(image: Image.Image, size: int) -> Image.Image:
    """Return the image scaled so that its shorter side is ``size`` px."""
    scale = size / min(image.size)
    if scale == 1:
        return image
    width, height = image.size
    return image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """Return the image as a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def read_image(path: Path, size: int | None = None, quality: int = DEFAULT_QUALITY) -> bytes:
    """Return the bytes of an image file as they are or, if ``size`` is given, a JPEG of that shorter side.

    Raises:
        UserError: The file cannot be read, or is neither a JPEG nor a PNG image.
    """
    try:
        image = path.read_bytes()
        # Reads the header only: `prepare --verify` decodes every image. ImageNet itself has a PNG named .JPEG.
        with Image.open(io.BytesIO(image), formats=("JPEG", "PNG")) as opened:
            return image if size is None else encode_jpeg(resize_image(opened.convert("RGB"), size), quality)
    except OSError as error:
        reason = error.strerror or "neither a JPEG nor a PNG image"
        raise UserError(f"{path}: cannot be packed: {reason}; repair or remove it") from None


def name_some(names: Sequence[str]) -> str:
    """Return the first names and the number of those that are left out, for a message."""
    more = f" and {len(names) - _NAMED_AT_MOST:,} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + more
