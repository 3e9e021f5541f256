"""Where images come from: class folders, IDX files, the built-in digits, generated ones; all as one `Source`.

Imports scikit-learn only for the digits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from configs.errors import UserError, nearest
from data.idx import Bytes, has_idx, read_idx_split
from data.manifest import SourceKind

__all__ = ["Settings", "Source", "SourceSplit", "open_source"]

_JPEG_SUFFIXES = (".jpg", ".jpeg")
_DIGITS_SIZE = 32
_QUALITY = 95
_NAMED_AT_MOST = 5
_APPLIES: dict[SourceKind, tuple[str, ...]] = {
    "digits": ("size", "quality"),
    "idx": ("size", "quality"),
    "folders": (),
    "generated": ("quality", "train", "eval", "classes"),
}


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a source; None where nothing was said.

    ``size`` is the shorter side in px, ``quality`` JPEG's; ``train``, ``eval`` and ``classes`` count what is generated
    from ``seed``.
    """

    size: int | None = None
    quality: int | None = None
    train: int | None = None
    eval: int | None = None
    classes: int | None = None
    seed: int = 1


@dataclass(frozen=True)
class SourceSplit:
    """Images in the source's own order: a label each, and a way to the JPEG bytes of the i-th."""

    labels: Sequence[int]
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


def open_source(name: str, settings: Settings) -> Source:
    """Find out what ``name`` is (``digits``, ``generated`` or a folder) and open it.

    Raises:
        UserError: Unknown source, a folder of neither layout, files that do not belong, a setting that does not apply.
    """
    kind = _detect(name)
    for setting in ("size", "quality", "train", "eval", "classes"):
        if getattr(settings, setting) is not None and setting not in _APPLIES[kind]:
            takers = ", ".join(taker for taker, takes in _APPLIES.items() if setting in takes)
            raise UserError(f"--{setting} does not apply to {kind}, only to {takers}; leave it out")
    if kind == "digits":
        return _open_digits(settings)
    if kind == "generated":
        return _open_generated(settings)
    return _open_idx(Path(name), settings) if kind == "idx" else _open_folders(Path(name))


def _detect(name: str) -> SourceKind:
    if name == "digits":
        return "digits"
    if name == "generated":
        return "generated"
    folder = Path(name)
    if not folder.is_dir():
        hint = nearest(name, ("digits", "generated"))
        raise UserError(f"source {name!r}: no such folder, and sources by name are digits and generated; {hint}")
    if has_idx(folder):
        return "idx"
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        return "folders"
    raise UserError(
        f"source {name}: neither train/<class>/*.jpg with val/<class>/*.jpg nor train-images-idx3-ubyte[.gz] and its "
        "three companions; give the folder that holds them"
    )


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# --- class folders ---


def _open_folders(folder: Path) -> Source:
    """Open the ImageNet layout; classes are labelled in the order of their sorted names, original bytes are kept."""
    names = _class_names(folder / "train")
    strangers = sorted(set(_class_names(folder / "val")) - set(names))
    if strangers:
        raise UserError(f"{folder / 'val'}: classes that train does not have: {_some(strangers)}; rename or remove")
    listing = {split: _list_images(folder / split, names) for split in ("train", "val")}
    for split, images in listing.items():
        if not images:
            raise UserError(f"{folder / split}: no image in any class folder; at least one .jpg is needed")
    train, val = ([(file, label) for file, label, _ in listing[split]] for split in ("train", "val"))
    return Source(
        kind="folders",
        description=f"class folders {folder.resolve().name}, original bytes",
        fingerprint=_fingerprint("folders", names, listing),
        class_names=names,
        train=_folder_split(folder / "train", names, train),
        eval=_folder_split(folder / "val", names, val),
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries}
    files = sorted(name for name, is_dir in kinds.items() if not is_dir)
    if files:
        raise UserError(f"{folder}: files where class folders should be: {_some(files)}; sort them into folders")
    if not kinds:
        raise UserError(f"{folder}: no class folder in it; make one for each class")
    return tuple(sorted(kinds))


def _list_images(folder: Path, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """List (file name, label, bytes) of each image, by class and then by name."""
    images: list[tuple[str, int, int]] = []
    refused: list[str] = []
    for label, name in enumerate(names):
        if not (folder / name).is_dir():
            continue
        with os.scandir(folder / name) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.lower().endswith(_JPEG_SUFFIXES) and entry.is_file():
                    images.append((entry.name, label, entry.stat().st_size))
                else:
                    refused.append(f"{name}/{entry.name}")
    if refused:
        raise UserError(f"{folder}: not JPEG files (.jpg, .jpeg): {_some(refused)}; convert or remove them")
    return images


def _folder_split(folder: Path, names: Sequence[str], images: list[tuple[str, int]]) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        file, label = images[index]
        path = folder / names[label] / file
        try:
            image = path.read_bytes()
            # The header only: a full decode is `prepare --verify`'s work. ImageNet itself has a PNG named .JPEG.
            Image.open(io.BytesIO(image), formats=("JPEG", "PNG")).close()
        except OSError as error:
            reason = error.strerror or "neither a JPEG nor a PNG image"
            raise UserError(f"{path}: cannot be packed: {reason}; repair or remove it") from None
        return image

    return SourceSplit([label for _, label in images], jpeg)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST:,} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + more


# --- IDX files and the built-in digits ---


def _open_idx(folder: Path, settings: Settings) -> Source:
    """Open MNIST's four files; grey images become RGB JPEGs, larger only if asked."""
    arrays = {split: read_idx_split(folder, stem) for split, stem in (("train", "train"), ("eval", "t10k"))}
    quality = settings.quality or _QUALITY
    height, width = arrays["train"][0].shape[1:]
    size = settings.size or min(height, width)
    _check_size(size, min(height, width))
    parts = [_digest(array) for pair in arrays.values() for array in pair]
    classes = 1 + max(int(labels.max()) for _, labels in arrays.values())
    return Source(
        kind="idx",
        description=f"IDX files {folder.resolve().name}, {size} px, JPEG quality {quality}",
        fingerprint=_fingerprint("idx", *parts, size, quality),
        class_names=tuple(str(label) for label in range(classes)),
        train=_grey_split(*arrays["train"], size, quality),
        eval=_grey_split(*arrays["eval"], size, quality),
    )


def _open_digits(settings: Settings) -> Source:
    """Open scikit-learn's 8x8 digits, enlarged; every third image is kept for evaluation."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 (takes a second; only this source needs it)

    digits = load_digits()
    quality, size = settings.quality or _QUALITY, settings.size or _DIGITS_SIZE
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    _check_size(size, images.shape[1])
    is_eval = np.arange(len(images)) % 3 == 2  # noqa: PLR2004
    return Source(
        kind="digits",
        description=f"scikit-learn's digits, {size} px, JPEG quality {quality}, every third for evaluation",
        fingerprint=_fingerprint("digits", _digest(images), _digest(labels), size, quality),
        class_names=tuple(str(name) for name in digits.target_names),
        train=_grey_split(images[~is_eval], labels[~is_eval], size, quality),
        eval=_grey_split(images[is_eval], labels[is_eval], size, quality),
    )


def _digest(array: Bytes) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _check_size(size: int, least: int) -> None:
    if size < least:
        raise UserError(f"--size {size}: smaller than the images; at least {least} px, or leave it out")


def _grey_split(images: Bytes, labels: Bytes, size: int, quality: int) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        image = Image.fromarray(images[index])
        scale = size / min(image.size)
        if scale != 1:
            width, height = image.size
            image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
        return _encode(image.convert("RGB"), quality)

    return SourceSplit(labels.tolist(), jpeg)


def _encode(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


# --- generated images ---


def _open_generated(settings: Settings) -> Source:
    """Make images of ImageNet's sizes, each from the seed, its split and its number; labels go round the classes."""
    train, evaluation, classes = settings.train or 256, settings.eval or 64, settings.classes or 10
    quality = settings.quality or _QUALITY
    width = len(str(classes - 1))
    return Source(
        kind="generated",
        description=f"generated images, seed {settings.seed}, JPEG quality {quality}",
        fingerprint=_fingerprint("generated", train, evaluation, classes, quality, settings.seed),
        class_names=tuple(f"class{label:0{width}}" for label in range(classes)),
        train=_generated_split(train, classes, (settings.seed, 0), quality),
        eval=_generated_split(evaluation, classes, (settings.seed, 1), quality),
    )


def _generated_split(count: int, classes: int, stream: tuple[int, int], quality: int) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        return _encode(_draw(np.random.default_rng((*stream, index))), quality)

    return SourceSplit([index % classes for index in range(count)], jpeg)


def _draw(random: np.random.Generator) -> Image.Image:
    """Draw noise whose power falls with frequency, as in photographs, about 500 x 400 px with a spread."""
    width, height = (int(np.clip(random.normal(mean, 80), 200, 1000)) for mean in (500, 400))
    total = np.full((height, width, 3), 128, np.float32)
    for cell, strength in ((128, 90), (32, 50), (8, 25), (3, 12)):
        grid = random.integers(0, 256, (height // cell + 2, width // cell + 2, 3), np.uint8)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += (np.asarray(layer, np.float32) - 128) * (strength / 128)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))
