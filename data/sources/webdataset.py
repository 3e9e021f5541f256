"""Shards of WebDataset, train*.tar and val*.tar: files of one name are a sample, as 7.jpg with 7.cls or 7.json.

A .cls holds the number of the class, a .json an object with the number as "label"; other files of a sample are not
used. The shards may lie in folders train and val; val may be valid, validation or test. With --in-place they are read
where they lie; else the images are packed: --size and --quality as for class folders.
"""

from collections import Counter
from contextlib import suppress
from itertools import chain, groupby, islice
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from configs.errors import UserError
from configs.machine_limits import default_workers
from configs.reading import patiently
from data.forms.webdataset import class_in
from data.images import TarMember
from data.parallel import ordered_map
from data.sources.class_folders import SUFFIXES, TRAIN, is_hidden
from data.sources.image_source import Settings, Source, shown
from data.sources.parts import Listed, files_of, open_parts
from data.sources.tars import members

LAYOUT = "train*.tar and val*.tar of WebDataset"
OPTIONS = ("size", "quality")

_LABELS = (".cls", ".json")
_LOOKED_AT = 8


def recognises(name: str) -> bool:
    """See `SourceModule`; the first members of a tar tell shards from ImageNet's tars of classes."""
    shards = files_of(Path(name), TRAIN, ".tar")
    first = islice(members(shards[0], is_shown=False), _LOOKED_AT) if shards else ()
    with suppress(OSError, UserError):  # which another source explains
        return any(name.lower().endswith(_LABELS) for name, _ in first)
    return False


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; the classes are known by their numbers alone."""
    return open_parts("webdataset", name, ".tar", _list, settings)


def _list(shards: list[Path]) -> Listed:
    """List the samples of a part, of several shards at a time."""
    listed = ordered_map(_list_shard, shards, workers=min(default_workers(), len(shards)))
    found = tqdm(listed, total=len(shards), desc="reading headers", unit=" shards", disable=None)
    files, labels, problems = (list(chain.from_iterable(parts)) for parts in zip(*found, strict=True))
    return Listed(files, labels, problems)


def _list_shard(shard: Path) -> Listed:
    found, place = Listed([], [], []), shard.absolute()
    with patiently(shard, lambda: shard.open("rb")) as opened:
        for key, sample in groupby(members(shard, is_shown=False), key=lambda member: _split_name(member[0])[0]):
            parts = [(_split_name(name)[1], (name, member)) for name, member in sample if member.isreg()]
            files = dict(parts)
            if len(files) < len(parts):  # else all but one sample of this name would be lost
                twice = next(suffix for suffix, count in Counter(suffix for suffix, _ in parts).items() if count > 1)
                found.problems.append(f"{shard}: {shown(key + twice)} is there twice; pack the shard again")
                continue
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
        first = next((name for name, member in members(shard, is_shown=False) if member.isreg()), None)
        told = f"; it begins with {shown(first)}, and a sample is as 7.jpg with 7.cls" if first else ", and no file"
        found.problems.append(f"{shard}: no sample in it{told}; pack it again, or move it away")
    return found


def _split_name(name: str) -> tuple[str, str]:
    """Return a sample's key and the suffix of a file of it, which begins with the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    key, dot, suffix = file.partition(".")
    return folder + slash + key, (dot + suffix).lower()
