"""Copy a packed data set from a shared folder to the local disk of this host: once, by the rank that comes first.

The name of the copy contains a digest of the manifest, so that another version of the data set is another copy. The
copy gets that name only after its checksums agree with the manifest. A process that died in the middle leaves a
partial copy, which the next one replaces.
"""

import errno
import hashlib
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from configs.errors import UserError
from configs.lock import locked
from configs.reading import Unreadable, exists, patiently
from configs.sync import sync
from data.forms.catalogue import form_of
from data.manifest import MANIFEST_FILE, SPLITS, Manifest, load_manifest
from data.space import require_space
from data.verify import check_files

_CHUNK_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Staged:
    """A copy on the local disk, which this process uses until `release`.

    Attributes:
        folder: The copy.
        copied_s: Seconds that copying took; None if the copy was there already.
    """

    folder: Path
    copied_s: float | None
    _use: ExitStack

    def release(self, *, keep: bool) -> None:
        """Stop using the copy. If not ``keep``, the last process of this host that uses it removes it."""
        self._use.close()
        if keep:
            return
        with suppress(BlockingIOError, FileNotFoundError), locked(self.folder.parent), locked(self.folder, wait=False):
            shutil.rmtree(self.folder)


def dataset_bytes(manifest: Manifest) -> int:
    """Return how many bytes the records and the indexes take on a disk."""
    return sum(manifest.split(name).rec_bytes + manifest.split(name).idx_bytes for name in SPLITS)


def stage(source: Path, disk: Path) -> Staged:
    """Return the local copy of a data set, and make the copy first if it is not there.

    While one process copies, all other processes of this host that want a copy on the same disk wait.

    Args:
        source: Folder of the packed data set.
        disk: Folder on the local disk, below which the copy lies; made if it is missing.

    Raises:
        UserError: The disk has too little space or may not be written, the source differs from the manifest, or its
            form cannot be copied.
    """
    manifest = load_manifest(source)
    if (why := form_of(source, "train").not_staged) is not None:
        raise UserError(f"{source}: cannot be copied to {disk}: {why}; set cluster.paths.stage to null")
    # Older versions knew no data set in place; their copies are used on.
    digest = hashlib.sha256(manifest.model_dump_json(exclude={"in_place"}).encode()).hexdigest()[:12]
    copy = disk / f"{source.name}-{digest}"
    try:
        disk.mkdir(parents=True, exist_ok=True)
        with locked(disk):
            begin = time.monotonic()
            was_there = _is_whole(copy, manifest)
            if not was_there:
                _copy_dataset(source, manifest, copy)
            use = ExitStack()
            use.enter_context(locked(copy, shared=True))
    except BlockingIOError:
        raise UserError(
            f"{disk}: another job uses a damaged copy of the data set; end that job, remove the copy"
        ) from None
    except OSError as error:
        told = f"{error.filename or disk}: {error.strerror}"
        remedy = "set cluster.paths.stage to a folder on a local disk that you may write, or to null"
        if error.errno in _FULL:
            told, remedy = f"{disk}: the disk is full", "free some space, or set cluster.paths.stage to another disk"
        raise UserError(f"{told}; {remedy}") from None
    return Staged(copy, None if was_there else time.monotonic() - begin, use)


def _is_whole(copy: Path, manifest: Manifest) -> bool:
    """Return whether the copy is there with the right file sizes, as it was written; remove a damaged copy."""
    if not exists(copy):
        return False
    try:
        check_files(copy, manifest)
        # The manifest is written last. To copy again is cheaper than to read the whole copy.
        written_ns = {file.name: patiently(file, file.stat).st_mtime_ns for file in copy.iterdir()}
        if max(written_ns.values()) > written_ns.get(MANIFEST_FILE, 0):
            raise UserError(f"{copy}: was written after it was copied")
    except Unreadable:  # It may be whole.
        raise
    except UserError:
        with locked(copy, wait=False):
            shutil.rmtree(copy)
        return False
    return True


def _copy_dataset(source: Path, manifest: Manifest, copy: Path) -> None:
    """Copy into a hidden folder beside the final one, check the copy, then give it the final name."""
    partial = copy.with_name(f".{copy.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    total = dataset_bytes(manifest)
    remedy = "set cluster.paths.stage to another disk, or to null to read the shared folder"
    require_space(copy.parent, total, f"a copy of {source}", remedy)
    partial.mkdir()
    with tqdm(total=total, desc=f"staging {source.name}", unit="B", unit_scale=True, disable=None) as progress:
        for name in SPLITS:
            split = manifest.split(name)
            for file, sha256 in ((f"{name}.idx", split.idx_sha256), (f"{name}.rec", split.rec_sha256)):
                _copy_file(source / file, partial / file, sha256, progress.update)
    manifest.save(partial)
    partial.rename(copy)


def _copy_file(source: Path, copy: Path, sha256: str, advance: Callable[[int], object]) -> None:
    """Copy a file to the disk.

    Raises:
        UserError: The checksum of the source differs from the manifest.
    """
    digest = hashlib.sha256()
    with patiently(source, lambda: source.open("rb")) as reader, copy.open("wb") as writer:

        def read_on() -> bytes:
            reader.seek(writer.tell())  # A read that failed may have moved it.
            return reader.read(_CHUNK_BYTES)

        while chunk := patiently(source, read_on):
            writer.write(chunk)
            digest.update(chunk)
            advance(len(chunk))
        writer.flush()
        sync(writer.fileno())
    if digest.hexdigest() != sha256:
        folder = shlex.quote(str(source.parent))
        raise UserError(
            f"{source}: sha256 differs from the manifest; ./run.sh prepare --verify {folder} says what is wrong"
        )
