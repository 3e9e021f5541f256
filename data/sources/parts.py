"""Files that hold many images each, by the part of a data set that their names say: ``train-0007.tar``, ``val.rec``."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from configs.errors import UserError
from configs.reading import entries, is_file
from data.sources.class_folders import EVAL_NAMES, TRAIN
from data.sources.image_source import name_some

_ALIKE = 0.5


def files_of(folder: Path, part: str, suffix: str) -> list[Path]:
    """Return the files of a part, sorted by name: those with its name among the words of theirs, or in its folder."""
    named = [path for path in entries(folder) if part in re.split("[^a-z]+", path.stem.lower())]
    return [path for path in (*named, *entries(folder / part)) if path.suffix == suffix and is_file(path)]


def parts_of(folder: Path, suffix: str) -> tuple[list[Path], list[Path]]:
    """Return the files of the training and of the evaluation part.

    Raises:
        UserError: There is no evaluation part.
    """
    found = [files for name in EVAL_NAMES if (files := files_of(folder, name, suffix))]
    if not found:
        allowed = ", ".join(f"{name}*{suffix}" for name in EVAL_NAMES)
        raise UserError(f"{folder}: no evaluation images beside train*{suffix}, allowed: {allowed}; add them")
    return files_of(folder, TRAIN, suffix), found[0]


def class_names_of(labels: Sequence[Sequence[int]], where: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of classes that are known by their numbers alone, and what is wrong with the numbers."""
    count = 1 + max(labels[0], default=0)
    problems = [f"{where}: one class, allowed: at least two"] if count == 1 else []
    if unknown := sorted({label for label in labels[1] if label >= count}):
        named = name_some([*map(str, unknown)])
        problems.append(f"{where}: evaluation labels that no training image has: {named}; allowed: 0 to {count - 1}")
    return tuple(map(str, range(count))), problems


def notes_on_order(where: Path, labels: Sequence[int], remedy: str) -> tuple[str, ...]:
    """Return a note if most images follow one of their own class: a reader mixes only those that lie near."""
    alike = sum(one == other for one, other in pairwise(labels))
    if len(set(labels)) < 2 or alike < _ALIKE * len(labels):  # noqa: PLR2004 (one class is in order)
        return ()
    told = "images of a class lie together, and training mixes only as many as data.shuffle_buffer says"
    return (f"{where}: {told}; {remedy}",)
