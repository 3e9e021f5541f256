"""Shards of WebDataset read where they lie, with an index of ours for DALI's reader, which names each image in it."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from configs.reading import patiently, read_bytes
from configs.sync import write_synced
from data.forms.form import Sample
from data.forms.in_place import Placed, Span
from data.images import ImageFile, TarMember
from data.manifest import InPlace, SplitName
from data.sources.image_source import shown


class Shards(Placed):
    """One split of shards; an image is known by its shard, its first byte there, and its name."""

    reader = "webdataset"
    suffix, keeps_order = ".idx", False
    source = re.compile(r"(?P<sample>.+:\d+:\S+)")

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        super().__init__(folder, split, place)
        self._shards = [self._root / name for name in (place.train if split == "train" else place.eval)]

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

    def _members(self, shard: Path, index: Path) -> Iterator[TarMember]:
        for line in read_bytes(index).decode("ascii").splitlines()[1:]:
            _, offset, size, name, _, label_offset, label_bytes, _ = line.split()
            yield TarMember(shard, _unquoted(name), int(offset), int(size), (int(label_offset), int(label_bytes)))

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path | None = None) -> dict[str, Any]:
        """See `Form`."""
        indexes = dict(zip(self._shards, self.index_files(), strict=True))
        for shard, offsets in _by_shard(left_out).items():
            assert scratch is not None
            kept = [each for each in self._members(shard, indexes[shard]) if each.offset not in offsets]
            _write(scratch / indexes[shard].name, kept)
            indexes[shard] = scratch / indexes[shard].name
        return {
            "paths": [*map(str, indexes)],
            "index_paths": [*map(str, indexes.values())],
            "ext": ["jpg", "cls"],
            "missing_component_behavior": "error",
        }

    def labels(self, output: Any) -> npt.NDArray[np.float32]:
        """See `Form`; NaN for what is no class."""
        return np.array([[_class_or_nan(output.at(row).tobytes())] for row in range(len(output))], np.float32)

    def name(self, samples: Iterable[Sample]) -> str:
        """See `Form`."""
        parts = (_parts(sample) for sample in samples)
        return ", ".join(shown(f"{shard}: {name}") for shard, _, name in parts)

    def image(self, sample: Sample) -> bytes:
        """See `Form`; the block before the image is its header."""
        shard, offset, _ = _parts(sample)
        with patiently(shard, lambda: shard.open("rb")) as file:
            file.seek(offset - tarfile.BLOCKSIZE)
            header = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
            return file.read(header.size)

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        return iter(self._shards)

    def spans(self) -> Iterator[Span]:
        """See `Placed`; the headers before a sample belong to it, and the end of a shard to its last one."""
        for shard, index in zip(self._shards, self.index_files(), strict=True):
            begin, members = 0, [*self._members(shard, index)]
            for number, (_, name, offset, size, label) in enumerate(members, start=1):
                assert label is not None
                end = max(offset + size, sum(label))
                image = slice(offset - begin, offset - begin + size)
                sample = f"{shard}:{offset}:{_quoted(name)}"
                yield Span(sample, shard, begin, end if number < len(members) else None, image)
                begin = end


def _write(index: Path, members: Sequence[TarMember]) -> None:
    """Write the index of a shard; DALI decodes by content, whatever the suffix says."""
    lines = [f"v1.2 {len(members)}\n"]
    for _, name, offset, size, label in members:
        assert label is not None
        lines.append(f"jpg {offset} {size} {_quoted(name)} cls {label[0]} {label[1]} {_quoted(name)}\n")
    write_synced(index, "".join(lines).encode("ascii"))


_quoted, _unquoted = partial(quote, errors="surrogateescape"), partial(unquote, errors="surrogateescape")


def _parts(sample: Sample) -> tuple[Path, int, str]:
    """Return shard, first byte and name of an image."""
    shard, offset, name = str(sample).rsplit(":", 2)
    return Path(shard), int(offset), _unquoted(name)


def _by_shard(samples: Iterable[Sample]) -> dict[Path, set[int]]:
    """Return the first bytes of images by shard."""
    parts = sorted(_parts(sample) for sample in samples)
    return {shard: {offset for _, offset, _ in each} for shard, each in groupby(parts, key=lambda part: part[0])}


def class_in(content: bytes) -> int:
    """Return the class that a .cls or a .json file of a sample has.

    Raises:
        ValueError: It has none that is a whole number from 0.
    """
    told = f"label {content[:40]!r}, allowed: a whole number from 0"
    try:
        label = json.loads(content)["label"] if content.lstrip().startswith(b"{") else int(content)
    except (ValueError, LookupError):
        raise ValueError(told) from None
    if not isinstance(label, int) or label < 0:
        raise ValueError(told)
    return label


def _class_or_nan(content: bytes) -> float:
    try:
        return class_in(content)
    except ValueError:
        return float("nan")
