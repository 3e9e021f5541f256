"""Advisory locks on folders, which the kernel releases when the process ends, even if it is killed.

Imports nothing of ours.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder while the block runs.

    Args:
        folder: An existing folder.
        shared: Whether other processes may hold the lock as ``shared`` at the same time.
        wait: Whether to wait until the lock is free.

    Raises:
        BlockingIOError: Another process holds the lock, and ``wait`` is false.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
