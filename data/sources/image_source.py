"""What every source of images is and does: settings, splits, JPEGs, fingerprints."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from data.manifest import SourceKind

__all__ = ["DEFAULT_QUALITY", "Settings", "Source", "SourceSplit", "encode", "fingerprint", "resized"]

DEFAULT_QUALITY = 95
"""JPEG's."""


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a source; None where nothing was said.

    ``size`` is the shorter side in px, ``quality`` JPEG's; ``train``, ``eval`` and ``classes`` count what is generated
    from ``seed``; of IDX files the first two take the first images, and go round where there are fewer. ``labels`` is
    a table of class -> labels by which IDX files give any number of labels an image.
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
    """Images in the source's own order, and a way to the JPEG bytes of the i-th.

    ``labels`` holds the class of each; of a table, a 0 or 1 for each class.
    """

    labels: Sequence[int] | Sequence[tuple[int, ...]]
    jpeg: Callable[[int], bytes]


@dataclass(frozen=True)
class Source:
    """Everything to be packed. Equal ``fingerprint`` means equal images."""

    kind: SourceKind
    description: str
    fingerprint: str
    class_names: tuple[str, ...]
    train: SourceSplit
    eval: SourceSplit


def fingerprint(*parts: object) -> str:
    """Digest what makes the images what they are."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def resized(image: Image.Image, size: int) -> Image.Image:
    """Make the shorter side ``size`` px."""
    scale = size / min(image.size)
    if scale == 1:
        return image
    width, height = image.size
    return image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)


def encode(image: Image.Image, quality: int) -> bytes:
    """Give a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
