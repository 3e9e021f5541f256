"""Pack a source into a data set folder: all of it under the final name, or nothing."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from configs.errors import UserError
from data.lock import locked
from data.manifest import SPLITS, Manifest, SourceManifest, SplitManifest, SplitName, load_manifest
from data.parallel import chunked, ordered_map
from data.recordio import RecordWriter, pack_image
from data.sources.image_source import Source, SourceSplit
from data.verify import check_files

__all__ = ["Prepared", "prepare"]

_IMAGES_PER_TASK = 16


@dataclass(frozen=True)
class Prepared:
    """The outcome: the data set's manifest, and whether it was already there."""

    manifest: Manifest
    was_up_to_date: bool


def prepare(source: Source, destination: Path, *, seed: int = 1, workers: int = 1) -> Prepared:
    """Pack ``source`` into the folder ``destination``.

    The bytes do not depend on ``workers``. Training records are shuffled once by ``seed``; evaluation records keep the
    source's order. Work goes on in a hidden folder beside the destination, which takes the final name at the end;
    what dead runs left there is removed.

    Raises:
        UserError: The destination holds something else, the disk is full, or an image cannot be read.
    """
    wanted = SourceManifest(kind=source.kind, description=source.description, fingerprint=source.fingerprint)
    if destination.exists():
        return Prepared(_load_same(destination, wanted, seed), was_up_to_date=True)
    try:
        with _partial_folder(destination) as partial:
            splits = {name: _pack(source, name, partial, seed, workers) for name in SPLITS}
            manifest = Manifest(format_version=1, source=wanted, seed=seed, class_names=source.class_names, **splits)
            manifest.save(partial)
            partial.rename(destination)
    except OSError as error:
        raise UserError(_explain(error, destination)) from None
    return Prepared(manifest, was_up_to_date=False)


def _load_same(destination: Path, wanted: SourceManifest, seed: int) -> Manifest:
    """Give the manifest of what is there already, if that is what is wanted."""
    remedy = "move it away or name another folder"
    try:
        found = load_manifest(destination)
        check_files(destination, found)
    except UserError as error:
        raise UserError(f"{destination} exists and is no complete data set ({error}); {remedy}") from None
    if (found.source, found.seed) != (wanted, seed):
        content = f"{found.source.description}; training order of seed {found.seed}"
        raise UserError(f"{destination} exists and holds other data or an older state ({content}); {remedy}")
    return found


def _explain(error: OSError, destination: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{destination}: the disk is full; nothing was left behind; free space or name a folder on another disk"
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return f"{destination}: was made by somebody else in the meantime; nothing was changed; try again"
    return f"{destination}: cannot be written: {error.strerror}; name another folder"


@contextlib.contextmanager
def _partial_folder(destination: Path) -> Iterator[Path]:
    """Make a hidden folder beside the destination, locked while this process lives; removed unless renamed."""
    parent = destination.parent
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{destination.name}.partial-"
    # The parent's lock keeps a sweep from taking a folder that is made but not yet locked.
    with locked(parent):
        _sweep(parent, prefix)
        partial = parent / f"{prefix}{secrets.token_hex(4)}"
        partial.mkdir()
        lock = contextlib.ExitStack()
        lock.enter_context(locked(partial))
    with lock:
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the partial folders that no living process has locked."""
    for stale in [entry for entry in parent.iterdir() if entry.name.startswith(prefix)]:
        with contextlib.suppress(BlockingIOError), locked(stale, wait=False):
            shutil.rmtree(stale, ignore_errors=True)


def _pack(source: Source, name: SplitName, folder: Path, seed: int, workers: int) -> SplitManifest:
    """Write one split's records and index."""
    split: SourceSplit = source.train if name == "train" else source.eval
    count = len(split.labels)
    order = np.random.default_rng(seed).permutation(count).tolist() if name == "train" else range(count)

    def payloads(indices: Sequence[int]) -> list[bytes]:
        return [pack_image(split.labels[index], index, split.jpeg(index)) for index in indices]

    with (
        RecordWriter(folder / f"{name}.rec", folder / f"{name}.idx") as writer,
        tqdm(total=count, desc=f"packing {name}", unit=" images", disable=None) as progress,
        contextlib.closing(ordered_map(payloads, chunked(order, _IMAGES_PER_TASK), workers=workers)) as packed,
    ):
        for batch in packed:
            for payload in batch:
                writer.write(payload)
            progress.update(len(batch))
        rec, idx = writer.finish()
    return SplitManifest(
        records=count,
        rec_bytes=rec.size_bytes,
        rec_sha256=rec.sha256,
        idx_bytes=idx.size_bytes,
        idx_sha256=idx.sha256,
        class_counts=_class_counts(split, len(source.class_names)),
    )


def _class_counts(split: SourceSplit, num_classes: int) -> tuple[int, ...]:
    """Count the images that have each class."""
    labels = np.asarray(split.labels)
    return tuple((np.bincount(labels, minlength=num_classes) if labels.ndim == 1 else labels.sum(axis=0)).tolist())
