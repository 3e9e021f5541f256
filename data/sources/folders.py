"""Sources that are files in folders: a folder for each class, or tables that name each file's labels."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from configs.errors import UserError
from data.sources.image_source import DEFAULT_QUALITY, Settings, Source, SourceSplit, encode, fingerprint, resized
from data.sources.tables import Table, find_table, read_table

__all__ = ["open_folders", "open_table"]

_JPEG_SUFFIXES = (".jpg", ".jpeg")
_NAMED_AT_MOST = 5


def open_folders(folder: Path) -> Source:
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
        fingerprint=fingerprint("folders", names, listing),
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
        return _read_image(folder / names[label] / file)

    return SourceSplit([label for _, label in images], jpeg)


def open_table(folder: Path, settings: Settings) -> Source:
    """Open ``train`` and ``val`` tables; classes are the training labels, sorted; bytes are kept unless resized."""
    paths = {split: find_table(folder, split) for split in ("train", "val")}
    tables = {split: read_table(path) for split, path in paths.items() if path is not None}
    names = tuple(sorted({label for labels in tables["train"].values() for label in labels}))
    strangers = sorted({label for labels in tables["val"].values() for label in labels} - set(names))
    if strangers:
        raise UserError(f"{paths['val']}: labels that {paths['train']} does not have: {_some(strangers)}")
    if len(names) < 2:  # noqa: PLR2004
        raise UserError(f"{paths['train']}: labels {list(names)}, allowed: at least two different ones")
    if settings.quality is not None and settings.size is None:
        raise UserError(f"--quality {settings.quality}: the images' own bytes are kept unless --size is given")
    for split, table in tables.items():
        missing = [file for file in table if not (folder / file).is_file()]
        if missing:
            raise UserError(f"{paths[split]}: no such files in {folder}: {_some(missing)}; files are relative to it")
    form = "original bytes" if settings.size is None else f"{settings.size} px, JPEG quality {_quality(settings)}"
    sizes = [[(folder / file).stat().st_size for file in table] for table in tables.values()]
    return Source(
        kind="table",
        description=f"tables of labels in {folder.resolve().name}, {form}",
        fingerprint=fingerprint("table", names, [list(table.items()) for table in tables.values()], sizes, form),
        class_names=names,
        train=_table_split(folder, names, tables["train"], settings),
        eval=_table_split(folder, names, tables["val"], settings),
    )


def _table_split(folder: Path, names: Sequence[str], table: Table, settings: Settings) -> SourceSplit:
    files = list(table)
    labels = [tuple(int(name in has) for name in names) for has in table.values()]
    return SourceSplit(labels, lambda index: _read_image(folder / files[index], settings.size, _quality(settings)))


def _quality(settings: Settings) -> int:
    return settings.quality or DEFAULT_QUALITY


def _read_image(path: Path, size: int | None = None, quality: int = DEFAULT_QUALITY) -> bytes:
    """Give a file's own bytes or, with ``size``, a JPEG of it whose shorter side is that."""
    try:
        image = path.read_bytes()
        # The header only: a full decode is `prepare --verify`'s work. ImageNet itself has a PNG named .JPEG.
        with Image.open(io.BytesIO(image), formats=("JPEG", "PNG")) as opened:
            return image if size is None else encode(resized(opened.convert("RGB"), size), quality)
    except OSError as error:
        reason = error.strerror or "neither a JPEG nor a PNG image"
        raise UserError(f"{path}: cannot be packed: {reason}; repair or remove it") from None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST:,} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + more
