"""The interface that every source of images fills, and what several of them need: digests, and names in messages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from configs.errors import UserError
from data.images import DEFAULT_QUALITY, ImageFile, encode_jpeg, file_facts, read_image, resize_image
from data.manifest import InPlace

_NAMED_AT_MOST = 5
_LOOKED_AT = 64
_LARGEST_KEPT, _SCALED_TO = 512, 256

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Settings:
    """The options of ``./run.sh prepare`` that change what a source gives; None where the user gave none.

    Attributes:
        size: Shorter side of the packed images, px; 0 keeps the bytes of files, whatever their size.
        quality: JPEG quality, 50 to 100.
        train: Number of training images.
        eval: Number of evaluation images.
        classes: Number of classes.
        labels: Table of class -> labels, which gives every image several labels (`data.sources.tables`).
        eval_share: Share of each class that is held out for evaluation, percent.
        seed: Seed of generated images, and of the choice of images that are held out.
        in_place: Whether the images will not be packed; then their bytes are kept, whatever their size.
    """

    size: int | None = None
    quality: int | None = None
    train: int | None = None
    eval: int | None = None
    classes: int | None = None
    labels: Path | None = None
    eval_share: int | None = None
    seed: int = 1
    in_place: bool = False


@dataclass(frozen=True)
class SourceSplit:
    """The training or the evaluation images, in the source's own order.

    Attributes:
        labels: The class of each image; in a source with several labels an image, a 0 or 1 for each class.
        jpeg: Returns the encoded bytes of the image at an index. Several processes call it at the same time.
        files: The user's files that the images are made of, in the same order; empty if the program makes them.
        size: Shorter side that the images are scaled to, px. If None, the bytes of files are kept.
        kept_bytes: Bytes of the files, where these are kept.
    """

    labels: Sequence[int] | Sequence[tuple[int, ...]]
    jpeg: Callable[[int], bytes]
    files: Sequence[ImageFile] = ()
    size: int | None = None
    kept_bytes: int = 0

    def taken(self, indices: Sequence[int]) -> SourceSplit:
        """Return the split of the images at some indices."""
        labels: Any = [self.labels[index] for index in indices]
        files = [self.files[index] for index in indices if self.files]
        return SourceSplit(labels, lambda place: self.jpeg(indices[place]), files, self.size)


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
        problems: What is wrong with the source, a line each; a source with problems is not packed.
        notes: What the user should know of the source, a line each.
        place: Where the images lie, and in which form, if they are to be read there; they are not packed.
    """

    kind: str
    description: str
    fingerprint: str
    class_names: tuple[str, ...]
    train: SourceSplit
    eval: SourceSplit
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    place: InPlace | None = None

    def split(self, name: str) -> SourceSplit:
        """Return the split ``train`` or ``eval``."""
        return self.train if name == "train" else self.eval

    def class_counts(self, name: str) -> list[int]:
        """Return how many images of a split have each class."""
        labels = np.asarray(self.split(name).labels)
        counts = np.bincount(labels, minlength=len(self.class_names)) if labels.ndim == 1 else labels.sum(axis=0)
        return counts.tolist()  # type: ignore[no-any-return]


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

    return SourceSplit(labels.tolist(), jpeg, size=size)


def check_size(size: int, least: int) -> None:
    """Raise UserError if ``--size`` would shrink images whose shorter side is ``least`` px."""
    if size < least:
        raise UserError(f"--size {size}: smaller than the images; allowed: at least {least} px, or leave it out")


def name_some(names: Sequence[str]) -> str:
    """Return the first names and the number of those that are left out, for a message."""
    more = f" and {len(names) - _NAMED_AT_MOST:,} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(map(shown, names[:_NAMED_AT_MOST])) + more


def planned(settings: Settings, files: Sequence[ImageFile]) -> tuple[Settings, str, list[str]]:
    """Return the settings with the size that the files get, what becomes of them in words, and notes on the choice.

    If the user chose no size, photographs are scaled: decoding 12 megapixels takes 0.1 s of a CPU in every epoch.

    Args:
        settings: What the user set; size 0 keeps the bytes, in the result None does.
        files: Images of the user; some of them are looked at.

    Raises:
        UserError: A quality is given without a size.
    """
    facts = [fact for file in files[:: -(-len(files) // _LOOKED_AT) or 1] if (fact := file_facts(file)) is not None]
    sides, are_turned, have_alpha = zip(*facts, strict=True) if facts else ((0,), (), ())
    side = int(np.median(sides))
    size, notes = settings.size, []
    if any(have_alpha):
        notes.append(
            "transparent images: alpha is dropped, so that pixels show the colour stored below it, often black"
        )
    if size is None and side > _LARGEST_KEPT and not settings.in_place:
        size = _SCALED_TO
        notes.append(f"images of {side:,} px (shorter side, median) are scaled to {size} px; --size keep keeps them")
    if size:
        quality = settings.quality or DEFAULT_QUALITY
        return replace(settings, size=size, quality=quality), f"{size} px, JPEG quality {quality}", notes
    if settings.quality is not None:
        raise UserError(f"--quality {settings.quality}: the bytes of the images are kept unless --size is given")
    if any(are_turned):
        notes.append("orientation tags are not followed where bytes are kept: --size turns these images upright")
    return replace(settings, size=None), "original bytes", notes


def file_split(
    files: Sequence[ImageFile], labels: Sequence[int] | Sequence[tuple[int, ...]], settings: Settings, num_bytes: int
) -> SourceSplit:
    """Return the split of images that lie in files of so many bytes, kept unless the settings have a size."""

    def jpeg(index: int) -> bytes:
        return read_image(files[index], settings.size, settings.quality or DEFAULT_QUALITY)

    return SourceSplit(labels, jpeg, files, settings.size, num_bytes if settings.size is None else 0)


def shown(name: str) -> str:
    """Return a file's name for a line of a message; control characters, and bytes that are no UTF-8, are escaped."""
    return re.sub(
        r"[\x00-\x1f\x7f]", lambda found: repr(found[0])[1:-1], os.fsencode(name).decode("utf-8", "backslashreplace")
    )


def is_utf8(name: str) -> bool:
    """Return whether a file's name is UTF-8; a manifest can hold no other name."""
    return os.fsencode(name).decode("utf-8", "replace") == name


def alike_in_print(names: Sequence[str]) -> list[str]:
    """Return a line for each name that no reader can tell from an earlier one."""
    first: dict[str, str] = {}
    pairs = [(name, first.setdefault(_printed(name), name)) for name in names]
    return [f"{name!a} prints like {other!a}; rename one of them" for name, other in pairs if name != other]


def _printed(name: str) -> str:
    """Return a name in one Unicode form, without spaces around it, and without characters that print nothing."""
    visible = (each for each in unicodedata.normalize("NFC", name) if unicodedata.category(each)[0] != "C")
    return " ".join("".join(visible).split())
