"""A folder of train/<class>/*.jpg and val/<class>/*.jpg, as ImageNet is laid out.

The bytes of the files are kept.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from data.sources.image_source import Settings, Source, SourceSplit, fingerprint, name_some, read_image

LAYOUT = "train/<class>/*.jpg with val/<class>/*.jpg"
OPTIONS: tuple[str, ...] = ()

_JPEG_SUFFIXES = (".jpg", ".jpeg")


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return (Path(name) / "train").is_dir() and (Path(name) / "val").is_dir()


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; labels count the sorted names of the class folders."""
    folder = Path(name)
    names = _class_names(folder / "train")
    unknown = sorted(set(_class_names(folder / "val")) - set(names))
    if unknown:
        raise UserError(f"{folder / 'val'}: classes that train does not have: {name_some(unknown)}; rename or remove")
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
        train=_split(folder / "train", names, train),
        eval=_split(folder / "val", names, val),
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries}
    files = sorted(name for name, is_dir in kinds.items() if not is_dir)
    if files:
        raise UserError(f"{folder}: files where class folders should be: {name_some(files)}; sort them into folders")
    if not kinds:
        raise UserError(f"{folder}: no class folder in it; make one for each class")
    return tuple(sorted(kinds))


def _list_images(folder: Path, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (file name, label, bytes) of each image, sorted by class and then by file name."""
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
        raise UserError(f"{folder}: not JPEG files (.jpg, .jpeg): {name_some(refused)}; convert or remove them")
    return images


def _split(folder: Path, names: Sequence[str], images: list[tuple[str, int]]) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        file, label = images[index]
        return read_image(folder / names[label] / file)

    return SourceSplit([label for _, label in images], jpeg)
