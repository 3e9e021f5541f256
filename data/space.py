"""Room on a disk, checked before hours are spent on filling it. Imports nothing of ours but `configs.errors`."""

import os
from pathlib import Path

from configs.errors import UserError


def require_space(folder: Path, needed_bytes: int, purpose: str, remedy: str) -> None:
    """Raise if the disk of a folder has too little room for a few files.

    Args:
        folder: An existing folder.
        needed_bytes: Bytes that will be written.
        purpose: What for, as in ``a copy of /data/imagenet``.
        remedy: What to do besides freeing space.

    Raises:
        UserError: Too few bytes are free, or no file can be made because the file system is out of inodes.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed_bytes:
        raise UserError(
            f"{folder}: {free / 1e9:,.1f} GB free, {needed_bytes / 1e9:,.1f} GB needed for {purpose}; free some space, "
            f"{remedy}"
        )
    if disk.f_files and not disk.f_favail:  # a file system without a table of inodes says 0
        raise UserError(f"{folder}: no inode is free for {purpose}; remove some files, {remedy}")
