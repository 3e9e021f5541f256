"""Shards of WebDataset read where they lie, with an index of ours for DALI's reader, which names each image in it."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from configs.reading import read_bytes
from configs.registry import MOST_CLASSES
from configs.sync import write_synced
from data.forms.form import Sample
from data.forms.in_place import Placed, Span
from data.images import ImageFile, TarMember
from data.manifest import InPlace, SplitName


class Shards(Placed):
    """One split of shards; an image is known by its shard, its first byte there, and its name."""

    reader = "webdataset"
    suffix, keeps_order = ".idx", False
    source = re.compile(r"(?P<sample>.+:\d+:\S+)")

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        super().__init__(folder, split, place)
        self._shards = [self._root / name for name in (place.train if split == "train" else place.eval)]
        self._known: dict[int, dict[Sample, TarMember]] = {}

    def index_files(self) -> list[Path]:
        """See `Placed`; DALI wants one for each shard."""
        return [self.index / f"{number:05}.idx" for number in range(len(self._shards))]

    def write_index(self, labels: Sequence[Any], files: Sequence[ImageFile]) -> None:
        """See `Placed`."""
        self.index.mkdir(exist_ok=True)
        members: dict[Path, list[TarMember]] = {shard: [] for shard in self._shards}
        for file in files:
            assert isinstance(file, TarMember)
            members[file.archive].append(file)
        for path, found in zip(self.index_files(), members.values(), strict=True):
            _write(path, found)

    def _members(self, number: int) -> Iterator[TarMember]:
        """Yield the images of a shard."""
        for line in read_bytes(self.index_files()[number]).decode("ascii").splitlines()[1:]:
            _, offset, size, name, _, *label, _ = line.split()
            where = int(label[0]), int(label[1])
            yield TarMember(self._shards[number], _unquoted(name), int(offset), int(size), where)

    def _number_of(self, sample: Sample) -> int:
        """Return the number of the shard that holds an image."""
        return self._shards.index(Path(str(sample).rsplit(":", 2)[0]))

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path = Path()) -> dict[str, Any]:
        """See `Form`."""
        indexes = self.index_files()
        for number in {self._number_of(sample) for sample in left_out}:
            kept = [each for each in self._members(number) if _sample_of(each) not in left_out]
            indexes[number] = scratch / indexes[number].name
            _write(indexes[number], kept)
        return {
            "paths": [*map(str, self._shards)],
            "index_paths": [*map(str, indexes)],
            "ext": ["jpg", "cls"],
            "missing_component_behavior": "error",
        }

    def labels(self, output: Any) -> npt.NDArray[np.float32]:
        """See `Form`; NaN for what is no class."""
        return np.array([[_class_or_nan(output.at(row).tobytes())] for row in range(len(output))], np.float32)

    def file(self, sample: Sample) -> ImageFile:
        """See `Form`."""
        number = self._number_of(sample)
        if number not in self._known:
            self._known[number] = {_sample_of(each): each for each in self._members(number)}
        return self._known[number][sample]

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        return iter(self._shards)

    def spans(self) -> Iterator[Span]:
        """See `Placed`; the headers before a sample belong to it, and the end of a shard to its last one."""
        for number, shard in enumerate(self._shards):
            begin, members = 0, [*self._members(number)]
            for place, member in enumerate(members, start=1):
                assert member.label is not None
                end = max(member.offset + member.size_bytes, sum(member.label))
                yield Span(_sample_of(member), member, shard, begin, end if place < len(members) else None)
                begin = end


def _write(index: Path, members: Sequence[TarMember]) -> None:
    """Write the index of a shard; DALI decodes by content, whatever the suffix says."""
    lines = [f"v1.2 {len(members)}\n"]
    for _, name, offset, size, label in members:
        assert label is not None
        lines.append(f"jpg {offset} {size} {_quoted(name)} cls {label[0]} {label[1]} {_quoted(name)}\n")
    write_synced(index, "".join(lines).encode("ascii"))


_quoted, _unquoted = partial(quote, errors="surrogateescape"), partial(unquote, errors="surrogateescape")


def _sample_of(member: TarMember) -> str:
    """Return what DALI's reader says of an image."""
    return f"{member.archive}:{member.offset}:{_quoted(member.name)}"


def class_in(content: bytes) -> int:
    """Return the class that a .cls or a .json file of a sample has.

    Raises:
        ValueError: It has none that is the number of a class.
    """
    told = f"label {content[:40]!r}, allowed: whole numbers 0 to {MOST_CLASSES - 1:,}"
    try:
        label = json.loads(content)["label"] if content.lstrip().startswith(b"{") else int(content)
    except (ValueError, LookupError, RecursionError):
        raise ValueError(told) from None
    if type(label) is not int or not 0 <= label < MOST_CLASSES:  # `true` of JSON is an int, too.
        raise ValueError(told)
    return label


def _class_or_nan(content: bytes) -> float:
    try:
        return class_in(content)
    except ValueError:
        return float("nan")
