"""Shards of WebDataset, train*.tar and val*.tar: files of one name are a sample, as 7.jpg with 7.cls or 7.json.

A .cls holds the number of the class, a .json an object with the number as "label"; other files of a sample are not
used. The shards may lie in folders train and val; val may be valid, validation or test. With --in-place they are read
where they lie; else the images are packed: --size and --quality as for class folders.
"""

import tarfile
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm import tqdm

from configs.arguments import counted
from configs.machine_limits import default_workers
from configs.reading import patiently
from data.forms.webdataset import class_in
from data.images import TarMember
from data.manifest import InPlace
from data.parallel import ordered_map
from data.sources.class_folders import SUFFIXES, TRAIN, is_hidden
from data.sources.image_source import Settings, Source, file_split, fingerprint, form_of, shown, with_size
from data.sources.parts import class_names_of, files_of, notes_on_order, parts_of
from data.sources.tars import members

LAYOUT = "train*.tar and val*.tar of WebDataset"
OPTIONS = ("size", "quality")

_LABELS = (".cls", ".json")
_LOOKED_AT = 8


class _Listed(NamedTuple):
    """The samples of shards: image, class, and what is wrong with them."""

    files: list[TarMember]
    labels: list[int]
    problems: list[str]


def recognises(name: str) -> bool:
    """See `SourceModule`; the first members of a tar tell shards from ImageNet's tars of classes."""
    shards = files_of(Path(name), TRAIN, ".tar")
    return bool(shards) and any(each.lower().endswith(_LABELS) for each in _first_names(shards[0]))


def _first_names(shard: Path) -> list[str]:
    try:
        with tarfile.open(shard, "r:") as archive:
            return [member.name for member in islice(archive, _LOOKED_AT)]
    except (OSError, tarfile.TarError):
        return []


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; the classes are known by their numbers alone."""
    folder = Path(name)
    shards = parts_of(folder, ".tar")
    train, evaluation = map(_list, shards)
    names, wrong = class_names_of((train.labels, evaluation.labels), folder)
    settings, notes = with_size(settings, [*train.files, *evaluation.files])
    form = form_of(settings)
    described = [[(each.name, each.size_bytes) for each in part.files] for part in (train, evaluation)]
    notes.append(f"shards of WebDataset: {counted(len(shards[0]), 'file')}, and {len(shards[1]):,} for evaluation")
    if settings.in_place:
        notes += notes_on_order(shards[0][0].parent, train.labels, "leave out --in-place, to shuffle and pack them")
    inside = [tuple(str(shard.relative_to(folder)) for shard in part) for part in shards]
    place = InPlace(form="webdataset", root=str(folder.absolute()), train=inside[0], eval=inside[1])
    return Source(
        kind="webdataset",
        description=f"WebDataset {folder.resolve().name}, {form}",
        fingerprint=fingerprint("webdataset", described, train.labels, evaluation.labels, form),
        class_names=names,
        train=file_split(train.files, train.labels, settings, sum(file.size_bytes for file in train.files)),
        eval=file_split(
            evaluation.files, evaluation.labels, settings, sum(file.size_bytes for file in evaluation.files)
        ),
        problems=(*train.problems, *evaluation.problems, *wrong),
        notes=tuple(notes),
        place=place if settings.in_place else None,
    )


def _list(shards: list[Path]) -> _Listed:
    """List the samples of a part, of several shards at a time."""
    whole = _Listed([], [], [])
    listed = ordered_map(_list_shard, shards, workers=min(default_workers(), len(shards)))
    for found in tqdm(listed, total=len(shards), desc="reading headers", unit=" shards", disable=None):
        whole.files.extend(found.files)
        whole.labels.extend(found.labels)
        whole.problems.extend(found.problems)
    return whole


def _list_shard(shard: Path) -> _Listed:
    found, place = _Listed([], [], []), shard.absolute()
    with patiently(shard, lambda: shard.open("rb")) as opened:
        for key, sample in groupby(members(shard, is_shown=False), key=lambda member: _split_name(member[0])[0]):
            files = {_split_name(name)[1]: (name, member) for name, member in sample if member.isreg()}
            image = next((files[suffix] for suffix in SUFFIXES if suffix in files), None)
            label = next((files[suffix][1] for suffix in _LABELS if suffix in files), None)
            if is_hidden(PurePosixPath(key).name) or (image is None and label is None):
                continue
            if image is None or label is None:
                lacks = ", ".join(SUFFIXES) if image is None else ", ".join(_LABELS)
                found.problems.append(f"{shard}: {shown(key)} has none of {lacks}; pack the shard again")
                continue
            name, member = image
            try:
                opened.seek(label.offset_data)
                found.labels.append(class_in(opened.read(label.size)))
            except ValueError as error:
                found.problems.append(f"{shard}: {shown(label.name)}: {error}")
                continue
            where = (label.offset_data, label.size)
            found.files.append(TarMember(place, name, member.offset_data, member.size, where))
    if not found.files and not found.problems:
        found.problems.append(f"{shard}: no sample in it; remove it")
    return found


def _split_name(name: str) -> tuple[str, str]:
    """Return a sample's key and the suffix of a file of it, which begins with the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    key, dot, suffix = file.partition(".")
    return folder + slash + key, (dot + suffix).lower()
