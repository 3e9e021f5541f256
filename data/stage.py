"""Copy a packed data set from a shared folder to this machine's own disk: once, by whichever of its ranks comes first.

The copy's name holds a digest of the manifest, so that another state of the data set is another copy. It takes that
name when its checksums are the manifest's; what a dead process left of it is gone on with.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from configs.errors import UserError
from data.lock import locked
from data.manifest import SPLITS, Manifest, load_manifest
from data.verify import check_files

__all__ = ["Staged", "dataset_bytes", "stage"]

_CHUNK_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Staged:
    """A copy on this machine's disk, in use by this process until `release`.

    Attributes:
        folder: The copy.
        copied_s: What copying it took; None where it was there.
    """

    folder: Path
    copied_s: float | None
    _use: ExitStack

    def release(self, *, keep: bool) -> None:
        """Use it no longer; unless it is to be kept, the last of its users on this machine removes it."""
        self._use.close()
        if keep:
            return
        with locked(self.folder.parent), suppress(BlockingIOError, FileNotFoundError), locked(self.folder, wait=False):
            shutil.rmtree(self.folder)


def dataset_bytes(manifest: Manifest) -> int:
    """Count what records and indexes take on a disk."""
    return sum(manifest.split(name).rec_bytes + manifest.split(name).idx_bytes for name in SPLITS)


def stage(source: Path, disk: Path) -> Staged:
    """Give a copy of the data set ``source`` below the folder ``disk``; whoever else wants it meanwhile waits.

    Raises:
        UserError: There is too little room, the folder may not be written, or the source is not what its manifest says.
    """
    manifest = load_manifest(source)
    digest = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:12]
    copy = disk / f"{source.name}-{digest}"
    with _explained(disk):
        disk.mkdir(parents=True, exist_ok=True)
        with locked(disk):
            begin = time.monotonic()
            was_there = _is_whole(copy, manifest)
            if not was_there:
                _copy_dataset(source, manifest, copy)
            use = ExitStack()
            use.enter_context(locked(copy, shared=True))
    return Staged(copy, None if was_there else time.monotonic() - begin, use)


@contextmanager
def _explained(disk: Path) -> Iterator[None]:
    """Turn what a disk may refuse into one line."""
    try:
        yield
    except BlockingIOError:
        raise UserError(f"{disk}: a damaged copy of the data set is in use; end the other job, remove it") from None
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(
                f"{disk}: the disk is full; free some of it, or set cluster.paths.stage elsewhere"
            ) from None
        raise UserError(
            f"{error.filename or disk}: {error.strerror}; set cluster.paths.stage to a folder on a local disk that you "
            f"may write, or to null"
        ) from None


def _is_whole(copy: Path, manifest: Manifest) -> bool:
    """Tell whether the copy is there, its sizes right; a damaged one is removed."""
    if not copy.exists():
        return False
    try:
        check_files(copy, manifest)
    except UserError:
        with locked(copy, wait=False):
            shutil.rmtree(copy)
        return False
    return True


def _copy_dataset(source: Path, manifest: Manifest, copy: Path) -> None:
    """Copy into a hidden folder beside the copy's place, checked, then move it there."""
    partial = copy.with_name(f".{copy.name}.partial")
    partial.mkdir(exist_ok=True)
    total = dataset_bytes(manifest)
    needed = total - sum(path.stat().st_size for path in partial.iterdir())
    free = shutil.disk_usage(partial).free
    if free < needed:
        raise UserError(
            f"{copy.parent}: {free / 1e9:,.1f} GB free, {needed / 1e9:,.1f} GB needed for a copy of {source}; free "
            f"some, set cluster.paths.stage to another disk, or to null to read the shared folder"
        )
    with tqdm(total=total, desc=f"staging {source.name}", unit="B", unit_scale=True, disable=None) as progress:
        for name in SPLITS:
            split = manifest.split(name)
            for file, sha256 in ((f"{name}.idx", split.idx_sha256), (f"{name}.rec", split.rec_sha256)):
                _copy_file(source / file, partial / file, sha256, progress.update)
    manifest.save(partial)
    partial.rename(copy)


def _copy_file(source: Path, copy: Path, sha256: str, advance: Callable[[int], object]) -> None:
    """Copy what is missing; begin anew where what was there proves wrong.

    Raises:
        UserError: The source is not what the manifest says.
    """
    was_begun = copy.exists()
    if _append(source, copy, advance) == sha256:
        return
    copy.unlink()
    if not was_begun:
        folder = source.parent
        raise UserError(
            f"{source}: its sha256 is not the manifest's; ./run.sh prepare --verify {folder} says what is wrong"
        )
    _copy_file(source, copy, sha256, advance)


def _append(source: Path, copy: Path, advance: Callable[[int], object]) -> str:
    """Copy what lies behind the end of ``copy``; give the whole copy's digest."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, copy.open("a+b") as writer:
        writer.seek(0)
        while chunk := writer.read(_CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk))
        reader.seek(writer.tell())
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            digest.update(chunk)
            advance(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()
