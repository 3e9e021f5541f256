"""Advisory locks on folders, which the kernel releases when the process ends, even if it is killed.

Imports nothing of ours.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True, is_needed: bool = True) -> Iterator[None]:
    """Hold the lock of a folder while the block runs.

    Args:
        folder: An existing folder.
        shared: Whether other processes may hold the lock as ``shared`` at the same time.
        wait: Whether to wait until the lock is free.
        is_needed: Whether the block may not run without the lock, where the file system has none (Lustre without flock,
            NFS without its lock daemon).

    Raises:
        BlockingIOError: Another process holds the lock, and ``wait`` is false.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            if is_needed:
                raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def partial_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a locked hidden folder in another one, which is removed at the end if it was not renamed.

    The other one is made if it is missing, and removed again if it stays empty.
    Those of processes that have ended are removed before; a live process holds a lock on its own.
    """
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    # Under the lock of the parent, no other process can remove this folder between mkdir and its own lock.
    with locked(parent, is_needed=False):
        for stale in [entry for entry in parent.iterdir() if entry.name.startswith(prefix)]:
            with suppress(OSError), locked(stale, wait=False):  # Without locks, nobody knows who lives.
                shutil.rmtree(stale, ignore_errors=True)
        partial = parent / f"{prefix}{secrets.token_hex(4)}"
        partial.mkdir()
        lock = ExitStack()
        lock.enter_context(locked(partial, is_needed=False))
    with lock:
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # It is not empty.
                    parent.rmdir()
