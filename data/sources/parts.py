"""Sources of files that hold many images each: their parts by name (``train-0007.tar``), their classes by number."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import entries, is_file
from data.images import ImageFile
from data.manifest import InPlace
from data.sources.class_folders import EVAL_NAMES, TRAIN
from data.sources.image_source import Settings, Source, file_split, fingerprint, name_some, planned

_ALIKE = 0.5


class Listed(NamedTuple):
    """The images of a part, the class of each, and what is wrong with others, a line each."""

    files: list[ImageFile]
    labels: list[int]
    problems: list[str]


def files_of(folder: Path, part: str, suffix: str) -> list[Path]:
    """Return the files of a part, sorted by name: those with its name among the words of theirs, or in its folder."""
    named = [path for path in entries(folder) if part in re.split("[^a-z]+", path.stem.lower())]
    return [path for path in (*named, *entries(folder / part)) if path.suffix == suffix and is_file(path)]


def open_parts(
    kind: str, name: str, suffix: str, list_part: Callable[[list[Path]], Listed], settings: Settings
) -> Source:
    """Return the source of all files in a folder whose names have a suffix.

    Args:
        kind: Of the source, and of the form in which the images can be read in place.
        name: The folder.
        suffix: Of the files.
        list_part: Lists the images of a part, in the order of its files and of their places there.
        settings: What the user set.

    Raises:
        UserError: There is no evaluation part.
    """
    folder = Path(name)
    evaluation = [files for part in EVAL_NAMES if (files := files_of(folder, part, suffix))]
    if not evaluation:
        allowed = ", ".join(f"{part}*{suffix}" for part in EVAL_NAMES)
        raise UserError(f"{folder}: no evaluation images beside train*{suffix}, allowed: {allowed}; add them")
    parts = files_of(folder, TRAIN, suffix), evaluation[0]
    if both := sorted({*parts[0]} & {*parts[1]}):
        raise UserError(f"{both[0]}: its name is that of both parts; rename it, as train-0{suffix} or val-0{suffix}")
    inside = [tuple(str(path.relative_to(folder)) for path in part) for part in parts]
    sizes = [[path.stat().st_size for path in part] for part in parts]
    listed = [list_part(part) for part in parts]
    labels = [part.labels for part in listed]
    count = 1 + max(labels[0], default=0)
    settings, form, notes = planned(settings, [*listed[0].files, *listed[1].files])
    notes += _notes_on_order(folder, labels[0], settings)
    num_files = counted(len(parts[0]), "file")
    train, held = (
        file_split(each.files, each.labels, settings, sum(size)) for each, size in zip(listed, sizes, strict=True)
    )
    return Source(
        kind=kind,
        description=f"{kind} {folder.resolve().name}, {form}",
        fingerprint=fingerprint(kind, inside, sizes, labels, form),
        class_names=tuple(map(str, range(count))),
        train=train,
        eval=held,
        problems=(*listed[0].problems, *listed[1].problems, *problems_of_labels(folder, count, labels[1])),
        notes=(f"{kind}: {num_files} for training, {len(parts[1]):,} for evaluation", *notes),
        place=InPlace(form=kind, root=str(folder.absolute()), train=inside[0], eval=inside[1])
        if settings.in_place
        else None,
    )


def problems_of_labels(folder: Path, count: int, labels: Sequence[int]) -> list[str]:
    """Return what is wrong with ``count`` classes known by number, and the labels of the evaluation images."""
    problems = [f"{folder}: one class, allowed: at least two"] if count == 1 else []
    if unknown := sorted({label for label in labels if label >= count}):
        named = name_some([*map(str, unknown)])
        problems.append(f"{folder}: evaluation labels that no training image has: {named}; allowed: 0 to {count - 1}")
    return problems


def _notes_on_order(folder: Path, labels: Sequence[int], settings: Settings) -> list[str]:
    """Return a note if most images follow one of their own class: in place, only those that lie near are mixed."""
    alike = sum(one == other for one, other in pairwise(labels))
    if not settings.in_place or len(set(labels)) < 2 or alike < _ALIKE * len(labels):  # noqa: PLR2004 (one class)
        return []
    told = "images of a class lie together, and training mixes only as many as data.shuffle_buffer says"
    return [f"{folder}: {told}; leave out --in-place, to shuffle and pack them"]
