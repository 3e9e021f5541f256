"""Reads that a file server may refuse for a moment: they are tried again, then refused in one line.

Imports nothing of ours but `configs.errors`.
"""

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from configs.errors import UserError

PATIENCE_S = 5.0
"""How long a read is tried again: the failures of a file server that is there, but busy or restarted, are shorter."""

_CALM_S = 60.0
"""Time after a refusal in which the same thread waits for no other read, so that many refusals cost one wait."""

_PAUSE_S = 0.5
"""Time between two tries."""

_LASTING = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENXIO,
        errno.ENODEV,
        errno.EINVAL,
    }
)
"""Errors that say what is at a path: nothing, nothing that can be read, or content that sends its reader astray.

To wait does not change that answer.
"""

CHECK_AND_REPEAT = "check its permissions, the disk or the file server, then repeat the command"

T = TypeVar("T")


class Unreadable(UserError):
    """A file or a folder that is there and could not be read, so that nothing is known of its content.

    Args:
        path: The file or the folder, or anything else whose text names what is read.
        error: The last answer of the operating system.

    Attributes:
        reason: The message without the path.
    """

    def __init__(self, path: object, error: OSError) -> None:
        remedy = CHECK_AND_REPEAT
        if error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "raise the limit on open files (ulimit -n), then repeat the command"
        self.reason = f"cannot be read: {error.strerror}; {remedy}"
        super().__init__(f"{path}: {self.reason}")


_refused = threading.local()


def may_pass(error: OSError) -> bool:
    """Return whether an error is no answer on what is at a path, and another try may succeed.

    An error without a number is not from the operating system.
    """
    return error.errno is not None and error.errno not in _LASTING


def patiently(path: object, read: Callable[[], T]) -> T:
    """Return what ``read`` returns; where the operating system refuses, try again for `PATIENCE_S`.

    Args:
        path: What is read, for the message.
        read: Reads it; may be called several times.

    Raises:
        Unreadable: The last try failed, too.
        OSError: There is nothing at the path, or nothing that can be read.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read()
        except OSError as error:
            if not may_pass(error):
                raise
            now_s = time.monotonic()
            if now_s + _PAUSE_S > give_up_s or now_s < getattr(_refused, "last_s", -_CALM_S) + _CALM_S:
                _refused.last_s = now_s
                raise Unreadable(path, error) from None
        time.sleep(_PAUSE_S)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; see `patiently`. Opening a pipe would wait for its writer: that is an OSError."""
    if (mode := _mode(path)) and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return patiently(path, path.read_bytes)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a mark at its begin; see `read_bytes`.

    Raises:
        UserError: The file is in another encoding, as spreadsheets write them.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read: it is not text in UTF-8; save it in that encoding") from None


def exists(path: Path) -> bool:
    """Return whether there is something at a path, behind links; raises `Unreadable`."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Return whether there is a regular file at a path, behind links; raises `Unreadable`."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path, behind links; raises `Unreadable`."""
    return stat.S_ISDIR(_mode(path) or 0)


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted by name; empty if there is no such folder; raises `Unreadable`.

    `Path.glob` also finds nothing in a folder that may not be read.
    """
    try:
        return sorted(patiently(folder, lambda: [*folder.iterdir()]))
    except OSError:
        return []


def file_of(path: Path) -> Path:
    """Return the file that a path leads to; of links in a circle, which `Path.resolve` refuses, the path."""
    return Path(os.path.realpath(path))


def in_the_way(path: Path) -> str:
    """Return in words what at a path, or above it, keeps a folder from being made there; empty if nothing does."""
    odd = (each for each in (path, *path.parents) if os.path.lexists(each) and not os.path.isdir(each))  # noqa: PTH112
    return next((f"{each} is {'a file' if each.exists() else 'a link that leads to no folder'}" for each in odd), "")


def _mode(path: Path) -> int | None:
    """Return type and permissions of what is at a path, or None if nothing is; `Path.stat` hides nothing."""
    try:
        return patiently(path, path.stat).st_mode
    except Unreadable:
        raise
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None
