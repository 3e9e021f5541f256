"""A folder of train/<class>/* and val/<class>/* with JPEG or PNG images, the layout of ImageNet.

The bytes of the files are kept. With --size, the images become JPEGs with that shorter side; --quality sets their
quality.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import UserError
from data.sources.image_source import (
    Settings,
    Source,
    file_split,
    fingerprint,
    form_of,
    is_utf8,
    name_some,
    shown,
    spelling_hint,
)

LAYOUT = "train/<class>/*.jpg with val/<class>/*.jpg"
OPTIONS = ("size", "quality")

_SUFFIXES = (".jpg", ".jpeg", ".png")


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return (Path(name) / "train").is_dir() and (Path(name) / "val").is_dir()


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; labels count the sorted names of the class folders of train."""
    folder, form = Path(name), form_of(settings)
    train, val = _list_split(folder / "train"), _list_split(folder / "val")
    names = train.class_names
    problems = [*train.problems, *val.problems]
    if unknown := sorted(set(val.class_names) - set(names)):
        named = name_some([each + spelling_hint(each, names) for each in unknown])
        problems.append(f"{folder / 'val'}: classes that train does not have: {named}; rename or remove")
    notes = []
    if absent := sorted(set(names) - set(val.class_names)):
        notes.append(f"{folder / 'val'}: no image of {name_some(absent)}: the accuracy does not cover these classes")
    if all(map(str.isdecimal, names)) and sorted(names, key=int) != [*names]:
        third = f"class {names[2]!r} has label 2"
        notes.append(f"{folder / 'train'}: class names are sorted as texts, not as numbers: {third}")
    numbers = {each: number for number, each in enumerate(names)}
    labels = [[numbers.get(name, 0) for name, _, _ in split.images] for split in (train, val)]
    listing = {
        split: [(file, label, size) for (_, file, size), label in zip(each.images, numbered, strict=True)]
        for split, each, numbered in zip(("train", "val"), (train, val), labels, strict=True)
    }
    kept = () if settings.size is None else (form,)
    return Source(
        kind="folders",
        description=f"class folders {folder.resolve().name}, {form}",
        fingerprint=fingerprint("folders", names, listing, *kept),
        class_names=names,
        train=file_split(train.paths(folder / "train"), labels[0], settings),
        eval=file_split(val.paths(folder / "val"), labels[1], settings),
        problems=tuple(problems),
        notes=tuple(notes),
    )


class _Listing(NamedTuple):
    """The class folders of a split.

    Attributes:
        class_names: Sorted names of the folders that are classes.
        images: (class, file name, bytes) of each image, sorted by class and then by file name.
        problems: What is wrong, a line each.
    """

    class_names: tuple[str, ...]
    images: list[tuple[str, str, int]]
    problems: list[str]

    def paths(self, folder: Path) -> list[Path]:
        """Return the path of each image."""
        return [folder / name / file for name, file, _ in self.images]


def _list_split(folder: Path) -> _Listing:
    """List the classes and the images of a split, and everything that does not belong there."""
    names: list[str] = []
    images: list[tuple[str, str, int]] = []
    problems: list[str] = []
    files: list[str] = []
    for entry in _entries(folder, problems):
        if entry.name.startswith("."):
            problems.append(f"{folder}: {shown(entry.name)}: hidden entries are not classes; remove it")
        elif not is_utf8(entry.name):
            problems.append(f"{folder}: {shown(entry.name)}: a class name that is not UTF-8; rename the folder")
        elif not Path(entry.path).is_dir():
            files.append(_why_no_file(entry) or shown(entry.name))
        else:
            found = _list_class(Path(entry.path), problems)
            images += [(entry.name, *each) for each in found]
            if found:
                names.append(entry.name)
            else:
                problems.append(f"{folder}: {shown(entry.name)}: a class folder without an image; fill or remove it")
    if files:
        problems.append(f"{folder}: files where class folders should be: {name_some(files)}; sort them into folders")
    if not images and not problems:
        raise UserError(f"{folder}: no class folder in it; make one for each class")
    problems += [f"{folder}: {each}" for each in _alike(names)]
    return _Listing(tuple(names), images, problems)


def _list_class(folder: Path, problems: list[str]) -> list[tuple[str, int]]:
    """Return (file name, bytes) of each image of a class, sorted; add what is no image to ``problems``."""
    images: list[tuple[str, int]] = []
    refused: list[str] = []
    for entry in _entries(folder, problems):
        reason = _why_no_file(entry)
        if reason is None and entry.name.startswith("."):
            reason = f"{shown(entry.name)} (hidden)"
        if reason is None and not entry.name.lower().endswith(_SUFFIXES):
            reason = shown(entry.name)
        if reason is None:
            images.append((entry.name, entry.stat().st_size))
        else:
            refused.append(reason)
    if refused:
        suffixes = ", ".join(_SUFFIXES)
        problems.append(f"{folder}: not image files ({suffixes}): {name_some(refused)}; convert or remove them")
    return images


def _entries(folder: Path, problems: list[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; none if it cannot be read, which is a problem."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        problems.append(f"{folder}: cannot be read: {error.strerror}")
        return []


def _why_no_file(entry: os.DirEntry[str]) -> str | None:
    """Return the name of an entry and why it is no regular file; None if it is one."""
    try:
        if entry.is_file():
            return None
        if entry.is_symlink() and not Path(entry.path).exists():
            return f"{shown(entry.name)} (a broken link)"
        return f"{shown(entry.name)} ({'a folder' if entry.is_dir() else 'not a regular file'})"
    except OSError as error:  # for example a loop of links
        return f"{shown(entry.name)} ({error.strerror})"


def _alike(names: Sequence[str]) -> list[str]:
    """Return a line for each class that differs from an earlier one in the Unicode form of its name only."""
    hints = ((name, spelling_hint(name, names[:number])) for number, name in enumerate(names))
    return [f"{name!r} occurs twice{hint}" for name, hint in hints if "Unicode" in hint]
