"""Writes files atomically, so that no reader sees half a file, and reports disks in trouble in one line."""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import UserError

_SPACE = "free some space, or put paths.runs on another disk"
_SERVER = "check the disk or the file server, or put paths.runs on another disk"
_REASONS = {
    errno.ENOSPC: ("the disk is full", _SPACE),
    errno.EDQUOT: ("the disk quota is used up", _SPACE),
    errno.EFBIG: ("the file would become larger than the file system or the user's limit allows", _SPACE),
    errno.EIO: ("the disk or the file server reports an input/output error", _SERVER),
    errno.ESTALE: ("the file server no longer knows the file (stale file handle)", _SERVER),
    errno.EROFS: ("the file system is read-only", _SERVER),
    errno.ETIMEDOUT: ("the file server does not answer", _SERVER),
    errno.ENOENT: (
        "the folder is missing, or was deleted during the run",
        "repeat the run without deleting the folder",
    ),
}
"""What a write error means and what to do. Network file systems give EIO, ESTALE and EROFS for moments only."""


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise a `UserError` that names ``path`` if writing fails for a known reason or is not permitted.

    Raises:
        UserError: In place of these errors; any other `OSError` is raised unchanged.
    """
    try:
        yield
    except PermissionError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}; choose a folder that you may write to"
        ) from error
    except OSError as error:
        reason, remedy = _REASONS.get(error.errno or 0, ("", ""))
        if not reason:
            raise
        raise UserError(f"{path}: cannot be written: {reason}; {remedy}") from error


def strict_json(value: Any) -> Any:
    """Return ``value`` in a form that strict JSON can hold.

    NumPy scalars and paths become plain values; NaN and infinity become None.
    """
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UserError: The path is no file, cannot be read, or holds something else.
    """
    try:
        if not path.is_file():  # Opening a pipe would wait for its writer.
            raise ValueError("it is not a file" if os.path.lexists(path) else "it is missing")
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError("it has no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give the folder of a run of this program") from None
    return tree


def write_json(path: Path, value: Any, *, is_private: bool = False) -> None:
    """Write ``value`` to ``path`` as strict JSON, atomically; with ``is_private``, only the owner can read the file.

    Raises:
        UserError: If the disk is full, or writing is not permitted.
    """
    write_text(path, json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n", is_private=is_private)


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Write ``text`` to ``path`` atomically: readers, also after a crash, see the whole old or the whole new file.

    With ``is_private``, only the owner can read the file.

    Raises:
        UserError: If the disk is full, or writing is not permitted.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_disk_errors(path):
        try:
            with partial.open("w", encoding="utf-8") as file:
                if is_private:
                    os.fchmod(file.fileno(), 0o600)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
