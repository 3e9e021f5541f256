"""Drop files from the page cache and see that they are gone, so that MLPerf's ``cache_clear`` event is true.

Linux only; needs no root. Imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

__all__ = ["clear_dataset", "drop_pages", "resident_bytes"]

_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 10, 0.1
"""A page that another run is just reading stays; a moment later it can be dropped."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def clear_dataset(folder: Path) -> str | None:
    """Drop a packed data set from memory; give why its images are not known to be gone, None when they are.

    The index and the manifest count for nothing: every rank reads them at its start.
    """
    left: int | None = 0
    for _ in range(_TRIES):
        drop_pages(path for path in folder.iterdir() if path.is_file())
        left = resident_bytes(folder.glob("*.rec"))
        if not left:
            break
        time.sleep(_PAUSE_S)
    if left is None:
        return "the kernel tells only their owner what it holds of these files"
    return f"{left:,} bytes stay: another process reads them, or they lie in memory as on a tmpfs" if left else None


def drop_pages(paths: Iterable[Path]) -> None:
    """Write back what is dirty in these files and ask the kernel to forget their pages.

    Pages that some process has mapped stay, and so do all pages of a tmpfs, whose files live nowhere else: ask
    `resident_bytes` afterwards.

    Raises:
        OSError: A file cannot be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(paths: Iterable[Path]) -> int | None:
    """Count the bytes of these files that the page cache holds, in whole pages.

    Returns:
        The count, or None where the kernel does not say: since 5.0 it tells only who owns the file or may write it.

    Raises:
        OSError: A file cannot be opened.
    """
    pages = 0
    for path in paths:
        if not (os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)):  # noqa: PTH116
            return None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for begin in range(0, size, _WINDOW_BYTES):
                pages += _resident_pages(file.fileno(), begin, min(_WINDOW_BYTES, size - begin))
    return pages * mmap.PAGESIZE


def _resident_pages(descriptor: int, begin: int, length: int) -> int:
    # A private writable mapping is never written; ctypes gives no address of a read-only one.
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=begin) as mapping:
        vector = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        anchor = ctypes.c_char.from_buffer(mapping)
        failed = _libc.mincore(ctypes.addressof(anchor), length, vector.ctypes.data)
        del anchor  # the mapping cannot be closed while it is pointed into
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # The other bits of a byte are reserved.
    return int(np.count_nonzero(vector & 1))
