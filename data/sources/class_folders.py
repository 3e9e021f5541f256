"""Which folders are classes, and which files are their images: layouts, listings, and everything that does not fit."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import Unreadable, is_file, is_folder, patiently
from data.images import ImageFile
from data.sources.image_source import alike_in_print, is_utf8, name_some, shown

SUFFIXES = (".jpg", ".jpeg", ".png")

TRAIN, _TRAINING = "train", "training"
EVAL_NAMES = ("val", "valid", "validation", "test")
PARTS = (TRAIN, _TRAINING, *EVAL_NAMES)
_TARS = {f"{start}{part}.tar": part for start in ("", "ilsvrc2012_img_") for part in PARTS}
"""Names of tars, in lower case -> the part that each of them holds."""
_KAGGLE = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
"""Where Kaggle's tree of ImageNet has the two parts, from its top and from the folders between."""
_SYSTEM_FILES = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir"}
    | {"lost+found", "$recycle.bin", "system volume information"}  # at the top of a disk
)


class Layout(NamedTuple):
    """Where the two parts of a data set lie: each is a folder, or a tar of what would lie in it.

    Attributes:
        train: The part for training.
        eval: The part for evaluation; None if images must be held out for it.
    """

    train: Path
    eval: Path | None


class ListedImage(NamedTuple):
    """An image of a class; of a flat part, the name of the class is empty."""

    class_name: str
    name: str
    size_bytes: int
    file: ImageFile


class Listing(NamedTuple):
    """The images of a part by class.

    Attributes:
        form: How the images are sorted into classes, in words.
        class_names: Sorted names of the classes.
        images: The images, sorted by class and then by file name.
        problems: What is wrong, a line each.
        empty: Names of class folders without an image.
    """

    form: str
    class_names: tuple[str, ...]
    images: list[ListedImage]
    problems: list[str]
    empty: Sequence[str] = ()

    @property
    def is_flat(self) -> bool:
        """Whether no image lies in a class folder."""
        return self.class_names == ("",)


def find_layout(folder: Path) -> Layout | None:
    """Return the layout of a folder, by the names in it alone; None if it has no class folders.

    Raises:
        UserError: Two folders may be the evaluation part, or a folder cannot be read.
    """
    parts = _parts(folder)
    train = parts.get(TRAIN, parts.get(_TRAINING))
    if train is not None and not _is_flat(train):
        found = [name for name in EVAL_NAMES if name in parts]
        used = found[:-1] if len(found) > 1 and found[-1] == "test" else found
        if len(used) > 1:
            several = " and ".join(parts[name].name for name in used)
            raise UserError(f"{folder}: evaluation images in {several}, allowed: one such folder; rename the others")
        return Layout(train, parts[used[0]] if used else None)
    if any(map(_holds_images, parts.values())):
        return Layout(folder, None)
    return next((find_layout(folder / each) for each in _KAGGLE if is_folder(folder / each)), None)


def _parts(folder: Path) -> dict[str, Path]:
    """Return the folders in a folder by name, and those of its parts that lie there as tars alone."""
    tars = {_TARS[name]: Path(entry.path) for entry in _entries(folder) if (name := entry.name.lower()) in _TARS}
    return {**tars, **{path.name.casefold(): path for path in _subfolders(folder)}}


def is_part(folder: Path) -> bool:
    """Return whether the class folders of a folder are one part of a data set whose other part lies beside it."""
    with suppress(Unreadable):  # A folder may be read whose parent may not be listed.
        around = find_layout(folder.parent) if folder.name.casefold() in PARTS else None
        return around is not None and around.eval is not None
    return False


def _subfolders(folder: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in _entries(folder) if not is_hidden(entry.name) and _is_folder(entry))


def _holds_images(folder: Path) -> bool:
    return any(
        entry.name.lower().endswith(SUFFIXES) and not is_hidden(entry.name) and not _is_folder(entry)
        for entry in _entries(folder)
    )


def _is_flat(folder: Path) -> bool:
    """Return whether a folder holds images, and no folders in which they could lie by class."""
    return _holds_images(folder) and not any(_subfolders(folder))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # for example of a loop of links, or a link that may not be followed
        return patiently(entry.path, entry.is_dir)
    return False


def is_hidden(name: str) -> bool:
    """Return whether an entry is hidden, or made by an operating system: ``.DS_Store``, ``Thumbs.db``."""
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def list_classes(folder: Path, *, is_root: bool = False) -> Listing:
    """List the classes and the images of a split, and everything that does not belong there.

    Args:
        folder: The folder of the class folders.
        is_root: Whether this is the folder that the user gave, where files that are no images may lie about.

    Raises:
        UserError: The folder has no class folder, and nothing else is wrong with it.
    """
    names: list[str] = []
    images: list[ListedImage] = []
    problems: list[str] = []
    files: list[str] = []
    empty: list[str] = []
    if _is_flat(folder):
        return Listing("flat", ("",), _list_class(folder, "", problems), problems)
    for entry in _entries(folder):
        if is_hidden(entry.name) or _is_packed(entry):
            continue
        if not is_utf8(entry.name):
            problems.append(f"{folder}: {shown(entry.name)}: a class name that is not UTF-8; rename the folder")
        elif _is_folder(entry):
            known = len(problems)
            found = _list_class(Path(entry.path), entry.name, problems)
            images += found
            # Whether a folder that holds what is refused has images of the class is not known.
            (names if found or len(problems) > known else empty).append(entry.name)
        elif not is_root or entry.name.lower().endswith(SUFFIXES):
            files.append(shown(entry.name))
    if files:
        remedy = "sort them into folders, and unpack tars"
        problems.append(f"{folder}: files where class folders should be: {name_some(files)}; {remedy}")
    if not images and not problems and not empty:
        raise UserError(f"{folder}: no class folder in it; make one for each class")
    problems += [f"{folder}: {each}" for each in alike_in_print(names)]
    return Listing(counted(len(names), "class folder"), tuple(names), images, problems, empty)


def _list_class(folder: Path, class_name: str, problems: list[str]) -> list[ListedImage]:
    """Return the images of a class, sorted by name; add to the problems what else is there."""
    images: list[ListedImage] = []
    refused: list[str] = []
    for entry in _entries(folder):
        if is_hidden(entry.name):
            continue
        size_bytes = _file_bytes(entry) if entry.name.lower().endswith(SUFFIXES) else None
        if size_bytes is not None:
            images.append(ListedImage(class_name, entry.name, size_bytes, Path(entry.path)))
        elif not _is_packed(entry):
            kind = " (a folder)" if _is_folder(entry) else " (a link to nothing)" if entry.is_symlink() else ""
            refused.append(f"{shown(entry.name)}{kind}")
    if refused:
        suffixes = ", ".join(SUFFIXES)
        problems.append(f"{folder}: not image files ({suffixes}): {name_some(refused)}; convert, move or remove them")
    return images


def _file_bytes(entry: os.DirEntry[str]) -> int | None:
    """Return the length of a regular file, by a single look at it; None of anything else."""
    with suppress(OSError):  # of a broken link, or a loop of links
        found = patiently(entry.path, entry.stat)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def _is_packed(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a data set that was packed into its source."""
    with suppress(Unreadable):  # as listing the folder tells
        return is_file(Path(entry.path) / "manifest.json")
    return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; none if there is no such folder; raises `Unreadable`."""

    def look() -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    with suppress(OSError):
        return patiently(folder, look)
    return []
