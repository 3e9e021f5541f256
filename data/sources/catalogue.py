"""Where images come from: class folders, tables, IDX files, the digits, generated ones; all as one `Source`.

Imports scikit-learn only for the digits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from configs.errors import UserError, nearest
from data.manifest import SourceKind
from data.sources.folders import open_folders, open_table
from data.sources.generated import draw_image
from data.sources.idx import Bytes, has_idx, read_idx_split
from data.sources.image_source import DEFAULT_QUALITY, Settings, Source, SourceSplit, encode, fingerprint, resized
from data.sources.tables import find_table, read_table

__all__ = ["Settings", "Source", "SourceSplit", "open_source"]

_DIGITS_SIZE = 32
_APPLIES: dict[SourceKind, tuple[str, ...]] = {
    "digits": ("size", "quality"),
    "idx": ("size", "quality", "train", "eval", "labels"),
    "folders": (),
    "table": ("size", "quality"),
    "generated": ("quality", "train", "eval", "classes"),
}


def open_source(name: str, settings: Settings) -> Source:
    """Find out what ``name`` is (``digits``, ``generated`` or a folder) and open it.

    Raises:
        UserError: Unknown source, a folder of neither layout, files that do not belong, a setting that does not apply.
    """
    kind = _detect(name)
    for setting in ("size", "quality", "train", "eval", "classes", "labels"):
        if getattr(settings, setting) is not None and setting not in _APPLIES[kind]:
            takers = ", ".join(taker for taker, takes in _APPLIES.items() if setting in takes)
            raise UserError(f"--{setting} does not apply to {kind}, only to {takers}; leave it out")
    if kind == "digits":
        return _open_digits(settings)
    if kind == "generated":
        return _open_generated(settings)
    if kind == "table":
        return open_table(Path(name), settings)
    return _open_idx(Path(name), settings) if kind == "idx" else open_folders(Path(name))


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
    if find_table(folder, "train") and find_table(folder, "val"):
        return "table"
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        return "folders"
    raise UserError(
        f"source {name}: neither train/<class>/*.jpg with val/<class>/*.jpg, nor the tables train.csv and val.csv (or "
        ".json), nor train-images-idx3-ubyte[.gz] and its three companions; give the folder that holds them"
    )


# --- IDX files and the built-in digits ---


def _open_idx(folder: Path, settings: Settings) -> Source:
    """Open MNIST's four files; grey images become RGB JPEGs, larger only if asked."""
    arrays = {
        split: _counted(*read_idx_split(folder, stem), count)
        for split, stem, count in (("train", "train", settings.train), ("eval", "t10k", settings.eval))
    }
    quality = settings.quality or DEFAULT_QUALITY
    height, width = arrays["train"][0].shape[1:]
    size = settings.size or min(height, width)
    _check_size(size, min(height, width))
    parts = [_digest(array) for pair in arrays.values() for array in pair]
    classes = tuple(str(label) for label in range(1 + max(int(labels.max()) for _, labels in arrays.values())))
    splits = {split: _grey_split(*pair, size, quality) for split, pair in arrays.items()}
    if settings.labels is not None:
        return _with_labels(folder, classes, splits, settings.labels, fingerprint("idx", *parts, size, quality))
    return Source(
        kind="idx",
        description=f"IDX files {folder.resolve().name}, {size} px, JPEG quality {quality}",
        fingerprint=fingerprint("idx", *parts, size, quality),
        class_names=classes,
        **splits,
    )


def _counted(images: Bytes, labels: Bytes, count: int | None) -> tuple[Bytes, Bytes]:
    """Take the first ``count``, the whole set again and again where it has fewer."""
    taken = np.arange(len(labels) if count is None else count) % len(labels)
    return images[taken], labels[taken]


def _with_labels(
    folder: Path, classes: tuple[str, ...], splits: dict[str, SourceSplit], path: Path, digest: str
) -> Source:  # fmt: skip
    """Give every image the labels that a table has for its class.

    Raises:
        UserError: The table is none, or names other classes.
    """
    table = read_table(path)
    if tuple(sorted(table)) != tuple(sorted(classes)):
        raise UserError(f"{path}: names {', '.join(sorted(table))}, allowed: each of the classes {', '.join(classes)}")
    names = tuple(sorted({label for labels in table.values() for label in labels}))
    vectors = [tuple(int(name in table[each]) for name in names) for each in classes]
    return Source(
        kind="table",
        description=f"IDX files {folder.resolve().name} with the labels of {path.name}",
        fingerprint=fingerprint("idx labels", digest, names, vectors),
        class_names=names,
        **{
            split: SourceSplit([vectors[label] for label in each.labels], each.jpeg)  # type: ignore[index]
            for split, each in splits.items()
        },
    )


def _open_digits(settings: Settings) -> Source:
    """Open scikit-learn's 8x8 digits, enlarged; every third image is kept for evaluation."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 (takes a second; only this source needs it)

    digits = load_digits()
    quality, size = settings.quality or DEFAULT_QUALITY, settings.size or _DIGITS_SIZE
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    _check_size(size, images.shape[1])
    is_eval = np.arange(len(images)) % 3 == 2  # noqa: PLR2004
    return Source(
        kind="digits",
        description=f"scikit-learn's digits, {size} px, JPEG quality {quality}, every third for evaluation",
        fingerprint=fingerprint("digits", _digest(images), _digest(labels), size, quality),
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
        return encode(resized(Image.fromarray(images[index]), size).convert("RGB"), quality)

    return SourceSplit(labels.tolist(), jpeg)


# --- generated images ---


def _open_generated(settings: Settings) -> Source:
    """Make images of ImageNet's sizes, each from the seed, its split and its number; labels go round the classes."""
    train, evaluation, classes = settings.train or 256, settings.eval or 64, settings.classes or 10
    quality = settings.quality or DEFAULT_QUALITY
    width = len(str(classes - 1))
    return Source(
        kind="generated",
        description=f"generated images, seed {settings.seed}, JPEG quality {quality}",
        fingerprint=fingerprint("generated", train, evaluation, classes, quality, settings.seed),
        class_names=tuple(f"class{label:0{width}}" for label in range(classes)),
        train=_generated_split(train, classes, (settings.seed, 0), quality),
        eval=_generated_split(evaluation, classes, (settings.seed, 1), quality),
    )


def _generated_split(count: int, classes: int, stream: tuple[int, int], quality: int) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        return encode(draw_image(np.random.default_rng((*stream, index))), quality)

    return SourceSplit([index % classes for index in range(count)], jpeg)
