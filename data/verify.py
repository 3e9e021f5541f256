"""Compare a data set with its manifest: in milliseconds before a run, or by reading every byte and every pixel."""

import contextlib
import hashlib
import io
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from configs.errors import UserError
from configs.reading import Unreadable, exists, patiently, read_bytes
from configs.registry import BUILT_IN_SOURCES, packing_words
from configs.schema import Data
from data.images import image_problem
from data.manifest import SPLITS, Manifest, SplitManifest, SplitName, load_manifest
from data.parallel import chunked, ordered_map
from data.recordio import (
    MIN_RECORD_BYTES,
    RecordError,
    RecordFile,
    ScannedRecord,
    parse_index_line,
    unpack_image,
)
from data.sources.catalogue import layout_of

_IMAGES_PER_TASK = 64

_Judged = tuple[int, int, str | None]
"""A record's number, its byte offset, and what is wrong with it before its image is decoded; None if nothing."""


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


def check_dataset(folder: Path, data: Data, num_classes: int) -> Manifest:
    """Check before a run that a data set is there, has the right file sizes, and fits the recipe. Takes milliseconds.

    Args:
        folder: Folder of the data set.
        data: The data block of the recipe; its source is not synthetic.
        num_classes: Number of outputs of the network.

    Returns:
        The manifest of the data set.

    Raises:
        UserError: The check failed; the text ends with the command that makes the data set.
    """
    command = _packing_command(folder, data, num_classes)
    remedy = f"move it away and run {command}"
    if not exists(folder):
        moved = f"if it lies elsewhere, set cluster.paths.data to the folder that holds {folder.name}"
        raise UserError(f"{folder}: no such data set; run {command}; {moved}")
    try:
        manifest = load_manifest(folder)
        check_files(folder, manifest)
    except Unreadable:  # Nothing is known of its content.
        raise
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from None
    if manifest.source.kind != data.source:
        raise UserError(
            f"{folder}: was packed from {manifest.source.kind}, the recipe says data.source: {data.source}; "
            f"set cluster.paths.data to another folder, or {remedy}"
        )
    for key, wanted, found in (
        ("train_samples", data.train_samples, manifest.train.records),
        ("eval_samples", data.eval_samples, manifest.eval.records),
    ):
        if wanted != found:
            raise UserError(
                f"{folder}: {found} records, the recipe says data.{key}: {wanted}; "
                f"--set data.{key}={found}, or {remedy}"
            )
    found = len(manifest.class_names)
    if found > num_classes or (manifest.has_label_vectors and found < num_classes):
        raise UserError(
            f"{folder}: {found} classes, the recipe says model.num_classes: {num_classes}; "
            f"--set model.num_classes={found}, or {remedy}"
        )
    return manifest


def _packing_command(folder: Path, data: Data, num_classes: int) -> str:
    """Return the command that makes the data set of a recipe."""
    assert data.source != "synthetic"
    words = packing_words(
        data.source, str(folder), train=data.train_samples, eval=data.eval_samples, classes=num_classes
    )
    command = f"./run.sh prepare {shlex.join(words)}"
    return command if data.source in BUILT_IN_SOURCES else f"{command}, where FOLDER has {layout_of(data.source)}"


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise UserError if a file is missing, has another length than the manifest says, or the index does not fit.

    Raises:
        Unreadable: A file cannot be read, so that it is not known whether it fits.
    """
    for name in SPLITS:
        problem = _quick_problem(folder, name, manifest.split(name))
        if problem is not None:
            raise UserError(f"{folder}: {problem}")


def _quick_problem(folder: Path, name: SplitName, split: SplitManifest) -> str | None:
    """Return what a look at the file lengths and the index finds wrong in a split; None if nothing."""
    for file, wanted in ((f"{name}.rec", split.rec_bytes), (f"{name}.idx", split.idx_bytes)):
        path = folder / file
        try:
            found = patiently(path, path.stat).st_size
        except OSError as error:
            return _finding(file, error.strerror or str(error))
        if found != wanted:
            return _finding(file, f"is {found:,} bytes long, the manifest says {wanted:,}")
    index = read_bytes(folder / f"{name}.idx")
    lines = index.count(b"\n")
    if lines != split.records:
        return _finding(f"{name}.idx", f"has {lines:,} lines, the manifest says {split.records:,} records")
    last = index[index.rfind(b"\n", 0, -1) + 1 :]
    try:
        _, offset = parse_index_line(last)
    except ValueError:
        return _finding(f"{name}.idx", f"the last line is not key<tab>offset: {last[:40]!r}")
    if offset + MIN_RECORD_BYTES > split.rec_bytes:
        return _finding(f"{name}.idx", "points past the end of the records", split.records - 1, offset)
    return None


def verify_dataset(folder: Path, *, workers: int = 1) -> Iterator[str]:
    """Read every byte, decode every image, and yield each finding as soon as it is made.

    Args:
        folder: Folder of the data set.
        workers: Number of processes that decode.

    Raises:
        UserError: The manifest is missing or damaged, so that there is nothing to compare with; or a file cannot be
            read.
    """
    manifest = load_manifest(folder)
    for name in SPLITS:
        yield from _verify_split(folder, name, manifest, workers)


def _verify_split(folder: Path, name: SplitName, manifest: Manifest, workers: int) -> Iterator[str]:
    quick = _quick_problem(folder, name, manifest.split(name))
    if quick is not None:
        yield quick
    with contextlib.ExitStack() as stack:
        try:
            records = stack.enter_context(RecordFile(folder / f"{name}.rec"))
            index = read_bytes(folder / f"{name}.idx")
        except OSError as error:
            if quick is None:
                yield _finding(Path(error.filename).name, error.strerror or str(error))
            return

        def judge(scanned: Sequence[_Judged]) -> list[str]:
            """Decode the images of records whose header is sound, in a worker."""
            found = []
            for number, offset, problem in scanned:
                if problem is not None:
                    found.append(_finding(f"{name}.rec", problem, number, offset))
                elif reason := decoding_problem(records, offset):
                    found.append(_finding(f"{name}.rec", f"the image {reason}", number, offset))
            return found

        audit = _SplitAudit(name, manifest)
        progress = stack.enter_context(
            tqdm(total=records.size_bytes, desc=f"verifying {name}", unit="B", unit_scale=True, disable=None)
        )
        tasks = chunked(audit.scan(records, progress.update), _IMAGES_PER_TASK)
        for findings in stack.enter_context(contextlib.closing(ordered_map(judge, tasks, workers=workers))):
            yield from findings
        yield from audit.compare(index)


def decoding_problem(records: RecordFile, offset: int) -> str | None:
    """Return why the image of a record cannot be trained on; None if it can."""
    return image_problem(io.BytesIO(unpack_image(records.read(offset)).image))


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
