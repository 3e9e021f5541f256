"""A data set as ``./run.sh prepare`` packs it: a file of records, an index, and a manifest with their checksums."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from configs.reading import patiently, read_bytes
from data.forms.records import RecordForm
from data.manifest import Manifest, SplitManifest, SplitName
from data.parallel import chunked, ordered_map
from data.recordio import MIN_RECORD_BYTES, RecordError, RecordFile, ScannedRecord, parse_index_line, unpack_image

_IMAGES_PER_TASK = 64

_Judged = tuple[int, int, str | None]
"""A record's number, its byte offset, and what is wrong with it before its image is decoded; None if nothing."""


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
        rec, quick = self.where.name, self.quick_problem(manifest.split(self._split))
        if quick is not None:
            yield quick
        try:
            records, index = self._records, read_bytes(self.index)
        except OSError as error:
            if quick is None:
                yield _finding(Path(error.filename).name, error.strerror or str(error))
            return

        def judge(scanned: Sequence[_Judged]) -> list[str]:
            """Decode the images of records whose header is sound, in a worker."""
            found = []
            for number, offset, problem in scanned:
                if problem is not None:
                    found.append(_finding(rec, problem, number, offset))
                elif reason := self.decoding_problem(offset):
                    found.append(_finding(rec, f"the image {reason}", number, offset))
            return found

        audit = _SplitAudit(self._split, manifest)
        with (
            tqdm(
                total=records.size_bytes, desc=f"verifying {self._split}", unit="B", unit_scale=True, disable=None
            ) as progress,
            contextlib.closing(
                ordered_map(judge, chunked(audit.scan(records, progress.update), _IMAGES_PER_TASK), workers=workers)
            ) as judged,
        ):
            for findings in judged:
                yield from findings
        yield from audit.compare(index)


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


class _SplitAudit:
    """Class counts, offsets and checksum, gathered in one pass over the records of a split."""

    def __init__(self, name: SplitName, manifest: Manifest) -> None:
        self._rec, self._idx, self._split = f"{name}.rec", f"{name}.idx", manifest.split(name)
        self._counts = np.zeros(len(manifest.class_names), int)
        self._has_vectors = manifest.has_label_vectors
        self._offsets: list[int] = []
        self._hash = hashlib.sha256()
        self._is_damaged = False

    def scan(self, records: RecordFile, advance: Callable[[int], object]) -> Iterator[_Judged]:
        """Yield all records of the file, and what their headers say of them.

        Args:
            records: The file.
            advance: Called with the number of bytes scanned since the last call.
        """
        for record in records.scan():
            self._hash.update(records.bytes_at(record.offset, record.end))
            self._offsets.append(record.offset)
            advance(record.end - record.offset)
            problem = record.problem or self._label_problem(record)
            self._is_damaged |= problem is not None
            yield record.number, record.offset, problem

    def _label_problem(self, record: ScannedRecord) -> str | None:
        """Count the labels of a record, and return what is wrong with the image header; None if nothing."""
        try:
            labels = unpack_image(record.payload).labels
        except RecordError as error:
            return str(error)
        wanted = len(self._counts) if self._has_vectors else 1
        if len(labels) != wanted:
            return f"has {len(labels)} labels, allowed: {wanted}"
        if self._has_vectors:
            if wrong := [f"{label:g} of class {index}" for index, label in enumerate(labels) if label not in (0, 1)]:
                return f"label {wrong[0]} is neither 0 nor 1"
            self._counts += np.array(labels, int)
            return None
        (label,) = labels
        if not (label.is_integer() and 0 <= label < len(self._counts)):
            return f"label {label:g} is outside the classes 0 to {len(self._counts) - 1}"
        self._counts[int(label)] += 1
        return None

    def compare(self, index: bytes) -> Iterator[str]:
        """Compare the whole file with the index and the manifest, and yield what differs."""
        yield from self._compare_index(index)
        for file, digest, wanted in (
            (self._rec, self._hash.hexdigest(), self._split.rec_sha256),
            (self._idx, hashlib.sha256(index).hexdigest(), self._split.idx_sha256),
        ):
            if digest != wanted:
                yield _finding(file, f"sha256 is {digest}, the manifest says {wanted}")
        if len(self._offsets) != self._split.records:
            found = f"has {len(self._offsets):,} records, the manifest says {self._split.records:,}"
            yield _finding(self._rec, found)
        elif not self._is_damaged:
            for label, (count, expected) in enumerate(zip(self._counts, self._split.class_counts, strict=True)):
                if count != expected:
                    found = f"has {count:,} records of class {label}, the manifest says {expected:,}"
                    yield _finding(self._rec, found)

    def _compare_index(self, index: bytes) -> Iterator[str]:
        lines, begins = index.splitlines(), set(self._offsets)
        for number, line in enumerate(lines):
            try:
                key, offset = parse_index_line(line)
            except ValueError:
                yield _finding(self._idx, f"line is not key<tab>offset: {line[:40]!r}", number)
                continue
            if key != number:
                yield _finding(self._idx, f"key is {key}, allowed: {number}", number, offset)
            if offset not in begins:
                yield _finding(self._idx, "points to an offset where no record begins", number, offset)
            elif len(lines) == len(self._offsets) and offset != self._offsets[number]:
                problem = f"points to another record, not to byte {self._offsets[number]}"
                yield _finding(self._idx, problem, number, offset)
        if len(lines) != len(self._offsets):
            yield _finding(self._idx, f"has {len(lines):,} lines for {len(self._offsets):,} records")
