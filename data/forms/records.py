"""Images in a RecordIO file with an index, which DALI's reader for MXNet reads: packed by the program, or in place."""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from configs.reading import patiently, read_bytes
from configs.sync import write_synced
from data.forms.form import Form, Sample
from data.forms.in_place import Placed, Span
from data.images import ImageFile, image_problem
from data.manifest import InPlace, Manifest, SplitManifest, SplitName
from data.parallel import in_order
from data.recordio import (
    MIN_RECORD_BYTES,
    RecordError,
    RecordFile,
    StoredRecord,
    class_of,
    find_wrong_length,
    index_rows,
    parse_index_line,
    unpack_image,
)


class RecordForm(Form):
    """How images in a file of records are read and named; an image is known by the byte offset of its record."""

    reader = "mxnet"
    source = re.compile(r".+ at index (?P<sample>\d+)")

    def __init__(self, rec: Path, index: Path) -> None:
        self.where, self.index = rec, index

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path = Path()) -> dict[str, Any]:
        """See `Form`."""
        index = self.index
        if left_out:
            rows = [f"{key}\t{offset}\n" for key, offset in index_rows(self.index) if offset not in left_out]
            index = scratch / self.index.name
            index.write_text("".join(rows), encoding="ascii")
        return {"path": [str(self.where)], "index_path": [str(index)]}

    def sample(self, source: str) -> Sample:
        """See `Form`."""
        return int(source)

    def samples(self) -> Iterator[Sample]:
        """See `Form`."""
        return (offset for _, offset in index_rows(self.index))

    @cached_property
    def _keys(self) -> dict[int, int]:
        return {offset: key for key, offset in index_rows(self.index)}

    def file(self, sample: Sample) -> ImageFile:
        """See `Form`."""
        # The index may have been replaced since DALI read it.
        return StoredRecord(self.where, self._keys.get(int(sample), -1), int(sample))

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        yield self.where

    def why_stopped(self, limit_s: float) -> str | None:
        """See `Form`."""
        with suppress(OSError, ValueError, LookupError):
            return find_wrong_length(self.where, self.index, limit_s)
        return None


class Packed(RecordForm):
    """One split of a packed data set, ``SPLIT.rec`` and ``SPLIT.idx``."""

    def __init__(self, folder: Path, split: SplitName) -> None:
        super().__init__(folder / f"{split}.rec", folder / f"{split}.idx")
        self._split = split

    def quick_problem(self, split: SplitManifest) -> str | None:
        """See `Form`: the lengths of the files and the ends of the index are compared with the manifest."""
        for file, wanted in ((self.where, split.rec_bytes), (self.index, split.idx_bytes)):
            try:
                found = patiently(file, file.stat).st_size
            except OSError as error:
                return _finding(file.name, error.strerror or str(error))
            if found != wanted:
                return _finding(file.name, f"is {found:,} bytes long, the manifest says {wanted:,}")
        index = read_bytes(self.index)
        lines = index.count(b"\n")
        if lines != split.records:
            return _finding(self.index.name, f"has {lines:,} lines, the manifest says {split.records:,} records")
        last = index[index.rfind(b"\n", 0, -1) + 1 :]
        try:
            _, offset = parse_index_line(last)
        except ValueError:
            return _finding(self.index.name, f"the last line is not key<tab>offset: {last[:40]!r}")
        if offset + MIN_RECORD_BYTES > split.rec_bytes:
            return _finding(self.index.name, "points past the end of the records", split.records - 1, offset)
        return None

    def verify(self, manifest: Manifest, workers: int) -> Iterator[str]:
        """See `Form`; each record is named with its number and place."""
        split, rec = manifest.split(self._split), self.where.name
        quick = self.quick_problem(split)
        if quick is not None:
            yield quick
        try:
            records, index = RecordFile(self.where), read_bytes(self.index)
        except OSError as error:
            if quick is None:
                yield _finding(Path(error.filename).name, error.strerror or str(error))
            return
        counts, num_sound = np.zeros(len(manifest.class_names), int), 0
        offsets: list[int] = []
        digest = hashlib.sha256()

        def scanned() -> Iterator[int]:
            for begin, end in records.scan():
                digest.update(records.bytes_at(begin, end))
                offsets.append(begin)
                yield begin

        def judge(offset: int) -> list[int] | str:
            """Return the classes of a record, or what is wrong with it, in a worker."""
            try:
                found = unpack_image(records.read(offset))
                classes = _classes_of(found.labels, len(counts), has_vectors=manifest.has_label_vectors)
            except RecordError as error:
                return str(error)
            problem = image_problem(io.BytesIO(found.image))
            return classes if problem is None else f"the image {problem}"

        title = f"verifying {self._split}"
        for number, found in enumerate(in_order(judge, scanned(), workers=workers, title=title, total=split.records)):
            if isinstance(found, str):
                yield _finding(rec, found, number, offsets[number])
            else:
                counts[found] += 1
                num_sound += 1
        yield from self._compare_index(index, offsets)
        index_sha256 = hashlib.sha256(index).hexdigest()
        for file, found, wanted in (
            (rec, digest.hexdigest(), split.rec_sha256),
            (self.index.name, index_sha256, split.idx_sha256),
        ):
            if found != wanted:
                yield _finding(file, f"sha256 is {found}, the manifest says {wanted}")
        if len(offsets) != split.records:
            yield _finding(rec, f"has {len(offsets):,} records, the manifest says {split.records:,}")
        elif num_sound == len(offsets):
            for label, (count, expected) in enumerate(zip(counts, split.class_counts, strict=True)):
                if count != expected:
                    yield _finding(rec, f"has {count:,} records of class {label}, the manifest says {expected:,}")

    def _compare_index(self, index: bytes, offsets: list[int]) -> Iterator[str]:
        name, lines, begins = self.index.name, index.splitlines(), set(offsets)
        for number, line in enumerate(lines):
            try:
                key, offset = parse_index_line(line)
            except ValueError:
                yield _finding(name, f"line is not key<tab>offset: {line[:40]!r}", number)
                continue
            if key != number:
                yield _finding(name, f"key is {key}, allowed: {number}", number, offset)
            if offset not in begins:
                yield _finding(name, "points to an offset where no record begins", number, offset)
            elif len(lines) == len(offsets) and offset != offsets[number]:
                yield _finding(name, f"points to another record, not to byte {offsets[number]}", number, offset)
        if len(lines) != len(offsets):
            yield _finding(name, f"has {len(lines):,} lines for {len(offsets):,} records")


def _classes_of(labels: Sequence[float], num_classes: int, *, has_vectors: bool) -> list[int]:
    """Return the classes of a packed image, or raise `RecordError`."""
    if not has_vectors:
        return [class_of(labels, num_classes)]
    if len(labels) != num_classes:
        raise RecordError(f"has {len(labels)} labels, allowed: {num_classes}")
    if wrong := [f"{label:g} of class {index}" for index, label in enumerate(labels) if label not in (0, 1)]:
        raise RecordError(f"label {wrong[0]} is neither 0 nor 1")
    return [index for index, label in enumerate(labels) if label]


def _finding(file: str, problem: str, record: int | None = None, offset: int | None = None) -> str:
    """Return a difference between a data set and its manifest, or damage, as one line.

    Args:
        file: Name of the file.
        problem: What is wrong.
        record: Number of the record, counted from 0; None if unknown.
        offset: Byte offset of the record; None if unknown.
    """
    where = "" if record is None else f" record {record}"
    where += "" if offset is None else f" at byte {offset}"
    return f"{file}{where}: {problem}"


class PlacedRecords(RecordForm, Placed):
    """A file of records in place, with a copy of its index; DALI's reader reads in the order of the file."""

    suffix, keeps_order = ".idx", False

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        Placed.__init__(self, folder, split, place)
        (name,) = place.train if split == "train" else place.eval
        self.where = Path(place.root) / name

    def write_index(self, labels: Sequence[Any], files: Sequence[ImageFile]) -> None:
        """See `Placed`."""
        records = [file for file in files if isinstance(file, StoredRecord)]
        write_synced(self.index, b"".join(b"%d\t%d\n" % (file.key, file.offset) for file in records))

    def spans(self) -> Iterator[Span]:
        """See `Placed`; a record ends where the next one of the index begins."""
        for (key, begin), (_, end) in pairwise([*index_rows(self.index), (0, None)]):
            assert begin is not None
            yield Span(begin, StoredRecord(self.where, key, begin), self.where, begin, end)
