"""Room on a disk, checked before hours are spent on filling it. Imports only `configs`."""

import os
from pathlib import Path

from configs.errors import UserError
from configs.machine_limits import free_bytes

_MOST_FILES = 8
"""Files of a data set or of an export, with their folders."""

_SMALL_BYTES = 1e8


def require_space(folder: Path, needed_bytes: int, purpose: str, remedy: str) -> None:
    """Raise if the disk of a folder has too little room for a few files.

    Args:
        folder: An existing folder.
        needed_bytes: Bytes that will be written.
        purpose: What for, as in ``a copy of /data/imagenet``.
        remedy: What to do besides freeing space.

    Raises:
        UserError: Too few bytes are free, or too few files can be made because the file system is short of inodes.
    """
    disk, free = os.statvfs(folder), free_bytes(folder)
    if free is not None and free < needed_bytes:
        raise UserError(
            f"{folder}: {_size(free)} free, {_size(needed_bytes)} needed for {purpose}; free some space, {remedy}"
        )
    if disk.f_files and disk.f_favail < _MOST_FILES:  # a file system without a table of inodes says 0 files
        words = f"{disk.f_favail} inodes free, {_MOST_FILES} needed for {purpose}"
        raise UserError(f"{folder}: {words}; remove some files, {remedy}")


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= _SMALL_BYTES else f"{num_bytes / 1e6:,.1f} MB"
