"""Compare a data set with its manifest: in milliseconds before a run, or by reading every byte and every pixel."""

import contextlib
import io
import shlex
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from configs.errors import UserError
from configs.registry import BUILT_IN_SOURCES, packing_words
from configs.schema import Data
from data.audit import DatasetFinding, SplitAudit, parse_index_line
from data.manifest import SPLITS, Manifest, SplitManifest, SplitName, load_manifest
from data.parallel import chunked, ordered_map
from data.recordio import MIN_RECORD_BYTES, RecordFile, unpack_image
from data.sources.catalogue import layout_of

_IMAGES_PER_TASK = 64
_BROKEN_IMAGE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)
"""The exceptions that Pillow raises on bytes that are not an image."""


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
    if not folder.exists():
        raise UserError(f"{folder}: no such data set; run {command}")
    try:
        manifest = load_manifest(folder)
        check_files(folder, manifest)
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
    """Raise UserError if a file is missing, has another length than the manifest says, or the index does not fit."""
    for name in SPLITS:
        problem = _quick_problem(folder, name, manifest.split(name))
        if problem is not None:
            raise UserError(f"{folder}: {problem}")


def _quick_problem(folder: Path, name: SplitName, split: SplitManifest) -> DatasetFinding | None:
    """Return what a look at the file lengths and the index finds wrong in a split; None if nothing."""
    for file, wanted in ((f"{name}.rec", split.rec_bytes), (f"{name}.idx", split.idx_bytes)):
        try:
            found = (folder / file).stat().st_size
        except OSError as error:
            return DatasetFinding(file, error.strerror or str(error))
        if found != wanted:
            return DatasetFinding(file, f"is {found:,} bytes long, the manifest says {wanted:,}")
    index = (folder / f"{name}.idx").read_bytes()
    lines = index.count(b"\n")
    if lines != split.records:
        return DatasetFinding(f"{name}.idx", f"has {lines:,} lines, the manifest says {split.records:,} records")
    last = index[index.rfind(b"\n", 0, -1) + 1 :]
    try:
        _, offset = parse_index_line(last)
    except ValueError:
        return DatasetFinding(f"{name}.idx", f"the last line is not key<tab>offset: {last[:40]!r}")
    if offset + MIN_RECORD_BYTES > split.rec_bytes:
        return DatasetFinding(f"{name}.idx", "points past the end of the records", split.records - 1, offset)
    return None


def verify_dataset(folder: Path, *, workers: int = 1) -> Iterator[DatasetFinding]:
    """Read every byte, decode every image, and yield each finding as soon as it is made.

    Args:
        folder: Folder of the data set.
        workers: Number of processes that decode.

    Raises:
        UserError: The manifest is missing or damaged, so that there is nothing to compare with.
    """
    manifest = load_manifest(folder)
    for name in SPLITS:
        yield from _verify_split(folder, name, manifest, workers)


def _verify_split(folder: Path, name: SplitName, manifest: Manifest, workers: int) -> Iterator[DatasetFinding]:
    quick = _quick_problem(folder, name, manifest.split(name))
    if quick is not None:
        yield quick
    with contextlib.ExitStack() as stack:
        try:
            records = stack.enter_context(RecordFile(folder / f"{name}.rec"))
            index = (folder / f"{name}.idx").read_bytes()
        except OSError as error:
            if quick is None:
                yield DatasetFinding(Path(error.filename).name, error.strerror or str(error))
            return
        audit = SplitAudit(name, manifest)
        progress = stack.enter_context(
            tqdm(total=records.size_bytes, desc=f"verifying {name}", unit="B", unit_scale=True, disable=None)
        )
        tasks = chunked(audit.sound_records(records, progress.update), _IMAGES_PER_TASK)
        decoded = stack.enter_context(contextlib.closing(ordered_map(_decoder(records, name), tasks, workers=workers)))
        for findings in decoded:
            yield from audit.take_findings()
            yield from findings
        yield from audit.finish(index)


def decoding_problem(records: RecordFile, offset: int) -> str | None:
    """Return why the image of a record cannot be decoded; None if it can."""
    try:
        with Image.open(io.BytesIO(unpack_image(records.read(offset)).image)) as opened:
            opened.load()
    except _BROKEN_IMAGE as error:
        return "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
    return None


def _decoder(records: RecordFile, name: SplitName) -> Callable[[Sequence[tuple[int, int]]], list[DatasetFinding]]:
    """Return the function of the workers, which decodes the images of records, given as (number, offset)."""

    def decode(places: Sequence[tuple[int, int]]) -> list[DatasetFinding]:
        findings = []
        for number, offset in places:
            if reason := decoding_problem(records, offset):
                findings.append(DatasetFinding(f"{name}.rec", f"the image cannot be decoded: {reason}", number, offset))
        return findings

    return decode
