"""Writes files atomically, so that no reader sees half a file, and reports a full disk in one line."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import UserError

__all__ = ["explain_disk_errors", "strict_json", "write_json", "write_text"]

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise a `UserError` that names ``path`` if the disk or the quota is full, or writing is not permitted.

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
        if error.errno not in _FULL:
            raise
        remedy = "free some space, or put paths.runs on another disk"
        raise UserError(f"{path}: cannot be written: {_FULL[error.errno]}; {remedy}") from error


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
