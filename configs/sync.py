"""Wait until what was written is on the disk, where a file system can tell. Imports the standard library only."""

import errno
import os
from pathlib import Path

_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""How a file system refuses to sync a file or a folder because it never does; the file is written all the same."""


def sync(descriptor: int) -> None:
    """Wait until an open file or folder is on the disk; a file system that has no such call is not asked twice.

    Raises:
        OSError: The disk is in trouble.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_synced(path: Path, content: bytes) -> None:
    """Write a file; returns when it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
