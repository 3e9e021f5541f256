"""Drop files from the page cache and check that they are gone, so that MLPerf's ``cache_clear`` event is true.

Works on Linux only, without root.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from configs.reading import entries, is_file, patiently
from data.forms.catalogue import form_of, image_files

_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 10, 0.1
"""A page that another run reads at this moment cannot be dropped; a little later it can."""

_NOT_TOLD = "the kernel tells how much of a file is in memory only to its owner, and where files can be mapped"

_libc = ctypes.CDLL(None)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def clear_dataset(folder: Path) -> str | None:
    """Drop a data set from the page cache.

    The index and the manifest may stay in the cache, because every rank reads them when it starts.

    Returns:
        None if the cache holds no image any more; otherwise the reason why that is not known or not so.
    """
    if (why := form_of(folder, "train").not_cleared) is not None:
        return why
    left: int | None = 0
    images = image_files(folder)
    for _ in range(_TRIES):
        drop_pages({*filter(is_file, entries(folder)), *images})
        left = resident_bytes(images)
        if not left:
            break
        time.sleep(_PAUSE_S)
    if left is None:
        return _NOT_TOLD
    return f"{left:,} bytes stay cached: another process reads them, or the folder is a tmpfs" if left else None


def drop_pages(paths: Iterable[Path]) -> None:
    """Write dirty pages of these files to the disk, and ask the kernel to drop all their pages from the cache.

    The kernel keeps pages that a process has mapped, and all pages of a tmpfs, because the files of a tmpfs exist in
    memory only. `resident_bytes` tells afterwards how much stayed.

    Raises:
        OSError, configs.reading.Unreadable: A file cannot be opened.
    """
    for path in paths:
        descriptor = patiently(path, partial(os.open, path, os.O_RDONLY))
        try:
            with suppress(OSError):  # What stays for want of it is counted afterwards.
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(paths: Iterable[Path]) -> int | None:
    """Return how many bytes of these files the page cache holds, counted in whole pages.

    Returns:
        The number; None if the kernel does not tell. Since Linux 5.0 it tells only a user who owns the file or may
        write to it. It cannot tell of a file system without mappings, as some in user space are.

    Raises:
        OSError, configs.reading.Unreadable: A file cannot be opened.
    """
    pages = 0
    for path in paths:
        if patiently(path, path.stat).st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None
        with patiently(path, partial(path.open, "rb")) as file:
            size = os.fstat(file.fileno()).st_size
            for begin in range(0, size, _WINDOW_BYTES):
                found = _resident_pages(file.fileno(), begin, min(_WINDOW_BYTES, size - begin))
                if found is None:
                    return None
                pages += found
    return pages * mmap.PAGESIZE


def _resident_pages(descriptor: int, begin: int, length: int) -> int | None:
    # The mapping is private and writable, but never written: ctypes cannot take the address of a read-only mapping.
    try:
        mapped = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=begin)
    except OSError:
        return None
    with mapped as mapping:
        vector = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        anchor = ctypes.c_char.from_buffer(mapping)
        failed = _libc.mincore(ctypes.addressof(anchor), length, vector.ctypes.data)
        del anchor  # a mapping cannot be closed while a ctypes object points into it
    # Only the lowest bit of each byte tells whether the page is cached; the others are reserved.
    return None if failed else int(np.count_nonzero(vector & 1))
