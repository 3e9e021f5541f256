"""Compare a data set with its manifest: in milliseconds before a run, or by reading every byte and every pixel."""

import hashlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import Unreadable, exists, patiently, read_bytes
from configs.registry import BUILT_IN_SOURCES, SOURCES_OF_FILES, packing_words
from configs.schema import Data
from data.forms.catalogue import form_of
from data.manifest import SPLITS, Manifest, load_manifest
from data.sources.catalogue import layout_of

_MOST_BYTES = 1 << 30
"""Size of a file whose checksum is compared before a run: that takes a second or two, and the other ranks wait."""


def check_dataset(
    folder: Path, data: Data, num_classes: int, *, is_first: bool = True, begun_ns: int | None = None
) -> Manifest:
    """Check before a run that a data set is there, has the right file sizes, and fits the recipe.

    Takes milliseconds for a packed data set. Of one in place, each file is looked at: 12 s for a million.

    Args:
        folder: Folder of the data set.
        data: The data block of the recipe; its source is not synthetic.
        num_classes: Number of outputs of the network.
        is_first: Whether this is the process of its host that looks at images in place, and compares checksums.
        begun_ns: The time, ns, at which the run began that is resumed: files that were written later are compared with
            their checksums. If None, the run is new.

    Returns:
        The manifest of the data set.

    Raises:
        UserError: The check failed; the text ends with the command that makes the data set.
    """
    command = f"./run.sh prepare {shlex.join(packing_words(data, num_classes, folder))}"
    if data.source not in BUILT_IN_SOURCES:
        command += f", where FOLDER has {layout_of(data.source)}"
    remedy = f"move it away and run {command}"
    if not exists(folder):
        moved = f"if it lies elsewhere, set cluster.paths.data to the folder that holds {folder.name}"
        raise UserError(f"{folder}: no such data set; run {command}; {moved}")
    try:
        manifest = load_manifest(folder)
        if (place := manifest.in_place) is not None:
            words = shlex.join(["--in-place", place.root, str(folder)])
            remedy = f"move {folder} away and run ./run.sh prepare {words}"
            if not exists(Path(place.root)):
                remedy = f"mount or move its images to {place.root} again, or pack them anew where they lie now"
        if place is None or is_first:
            check_files(folder, manifest)
        if place is None and is_first and begun_ns is not None:
            _check_written(folder, manifest, begun_ns)
    except Unreadable:  # Nothing is known of its content.
        raise
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from None
    kinds = {manifest.source.kind, data.source}
    if len(kinds) > 1 and not kinds <= SOURCES_OF_FILES:
        raise UserError(
            f"{folder}: was packed from {manifest.source.kind}, the recipe says data.source: {data.source}; "
            f"set cluster.paths.data to another folder, or {remedy}"
        )
    for key, noun, wanted, found in (
        ("data.train_samples", "records", data.train_samples, manifest.train.records),
        ("data.eval_samples", "records", data.eval_samples, manifest.eval.records),
        ("model.num_classes", "classes", num_classes, len(manifest.class_names)),
    ):
        may_be_fewer = noun == "classes" and not manifest.has_label_vectors
        if found > wanted or (found < wanted and not may_be_fewer):
            told = f"{found} {noun}, the recipe says {key}: {wanted}; --set {key}={found}"
            raise UserError(f"{folder}: {told}, or {remedy}")
    images = manifest.eval.records
    if manifest.has_label_vectors and not any(0 < count < images for count in manifest.eval.class_counts):
        raise UserError(
            f"{folder}: no class is both present and absent among its {counted(images, 'evaluation image')}: "
            f"no ROC-AUC; mend the evaluation table, then {remedy}"
        )
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise UserError if a file is missing, has another length than the manifest says, or the index does not fit.

    Raises:
        Unreadable: A file cannot be read, so that it is not known whether it fits.
    """
    for name in SPLITS:
        problem = form_of(folder, name).quick_problem(manifest.split(name))
        if problem is not None:
            raise UserError(f"{folder}: {problem}")


def _check_written(folder: Path, manifest: Manifest, begun_ns: int) -> None:
    """Raise UserError if files of a packed data set were written after a time and have other bytes than before it."""
    for name in SPLITS:
        form, split = form_of(folder, name), manifest.split(name)
        for file, sha256 in ((form.where, split.rec_sha256), (form.index, split.idx_sha256)):
            found = patiently(file, file.stat)
            is_later = found.st_mtime_ns > begun_ns
            if is_later and found.st_size > _MOST_BYTES:
                words = f"./run.sh prepare --verify {shlex.quote(str(folder))} tells whether it is still the same"
                sys.stderr.write(f"warning: {file}: was written after the run began; {words}\n")
            elif is_later and hashlib.sha256(read_bytes(file)).hexdigest() != sha256:
                words = f"{file.name} was changed after the run began: its sha256 is not that of the manifest"
                raise UserError(f"{folder}: {words}")


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
        yield from form_of(folder, name).verify(manifest, workers)
