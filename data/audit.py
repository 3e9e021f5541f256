"""Compare the records and the index of a split with its manifest, in one pass over the bytes; decodes no image."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data.manifest import Manifest, SplitName
from data.recordio import RecordError, RecordFile, ScannedRecord, unpack_image


@dataclass(frozen=True)
class DatasetFinding:
    """A difference between a data set and its manifest, or damage.

    Attributes:
        file: Name of the file.
        problem: What is wrong.
        record: Number of the record, counted from 0; None if unknown.
        offset: Byte offset of the record; None if unknown.
    """

    file: str
    problem: str
    record: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        """Return the finding as one line."""
        where = "" if self.record is None else f" record {self.record}"
        where += "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.file}{where}: {self.problem}"


def parse_index_line(line: bytes) -> tuple[int, int]:
    """Return key and byte offset of a line of an index, or raise ValueError."""
    key, offset = line.rstrip(b"\n").split(b"\t")
    if not (key.isdigit() and offset.isdigit()):
        raise ValueError(line)
    return int(key), int(offset)


class SplitAudit:
    """Findings, class counts, offsets and checksum, gathered in one pass over the records of a split."""

    def __init__(self, name: SplitName, manifest: Manifest) -> None:
        self._rec, self._idx = f"{name}.rec", f"{name}.idx"
        self._split = manifest.split(name)
        self._counts = [0] * len(manifest.class_names)
        self._has_vectors = manifest.has_label_vectors
        self._offsets: list[int] = []
        self._hash = hashlib.sha256()
        self._found: list[DatasetFinding] = []
        self._damaged = False

    def take_findings(self) -> list[DatasetFinding]:
        """Return the findings since the last call."""
        found, self._found = self._found, []
        return found

    def sound_records(self, records: RecordFile, advance: Callable[[int], object]) -> Iterator[tuple[int, int]]:
        """Scan the file, and yield number and byte offset of each record whose image can be decoded.

        Args:
            records: The file.
            advance: Called with the number of bytes scanned since the last call.
        """
        for record in records.scan():
            self._hash.update(records.bytes_at(record.offset, record.end))
            self._offsets.append(record.offset)
            advance(record.end - record.offset)
            problem = record.problem or self._label_problem(record)
            if problem is None:
                yield record.number, record.offset
            else:
                self._damaged = True
                self._found.append(DatasetFinding(self._rec, problem, record.number, record.offset))

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
            return self._vector_problem(labels)
        (label,) = labels
        if not (label.is_integer() and 0 <= label < len(self._counts)):
            return f"label {label:g} is outside the classes 0 to {len(self._counts) - 1}"
        self._counts[int(label)] += 1
        return None

    def _vector_problem(self, labels: Sequence[float]) -> str | None:
        """Count the classes of an image, and return which label is neither 0 nor 1; None if all are."""
        for index, label in enumerate(labels):
            if label not in (0, 1):
                return f"label {label:g} of class {index} is neither 0 nor 1"
        self._counts = [count + int(label) for count, label in zip(self._counts, labels, strict=True)]
        return None

    def finish(self, index: bytes) -> list[DatasetFinding]:
        """Compare the whole file with the index and the manifest, and return the remaining findings."""
        self._compare_index(index)
        for file, digest, wanted in (
            (self._rec, self._hash.hexdigest(), self._split.rec_sha256),
            (self._idx, hashlib.sha256(index).hexdigest(), self._split.idx_sha256),
        ):
            if digest != wanted:
                self._found.append(DatasetFinding(file, f"sha256 is {digest}, the manifest says {wanted}"))
        if len(self._offsets) != self._split.records:
            found = f"has {len(self._offsets):,} records, the manifest says {self._split.records:,}"
            self._found.append(DatasetFinding(self._rec, found))
        elif not self._damaged:
            for label, (count, expected) in enumerate(zip(self._counts, self._split.class_counts, strict=True)):
                if count != expected:
                    found = f"has {count:,} records of class {label}, the manifest says {expected:,}"
                    self._found.append(DatasetFinding(self._rec, found))
        return self.take_findings()

    def _compare_index(self, index: bytes) -> None:
        lines = index.splitlines()
        begins = set(self._offsets)
        for number, line in enumerate(lines):
            try:
                key, offset = parse_index_line(line)
            except ValueError:
                self._found.append(DatasetFinding(self._idx, f"line is not key<tab>offset: {line[:40]!r}", number))
                continue
            if key != number:
                self._found.append(DatasetFinding(self._idx, f"key is {key}, allowed: {number}", number, offset))
            if offset not in begins:
                self._found.append(
                    DatasetFinding(self._idx, "points to an offset where no record begins", number, offset)
                )
            elif len(lines) == len(self._offsets) and offset != self._offsets[number]:
                problem = f"points to another record, not to byte {self._offsets[number]}"
                self._found.append(DatasetFinding(self._idx, problem, number, offset))
        if len(lines) != len(self._offsets):
            self._found.append(
                DatasetFinding(self._idx, f"has {len(lines):,} lines for {len(self._offsets):,} records")
            )
