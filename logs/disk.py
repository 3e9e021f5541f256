"""Writing files so that a reader never meets half of one, and a full disk is one clear line."""

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
    """Turn a full disk or quota, or a folder that may not be written, into one line that names ``path``.

    Raises:
        UserError: In place of such an `OSError`; any other passes through.
    """
    try:
        yield
    except PermissionError as error:
        raise UserError(f"{path}: may not be written ({error.strerror}); give a folder that you own") from error
    except OSError as error:
        if error.errno not in _FULL:
            raise
        remedy = "free some space, or put paths.runs on another disk"
        raise UserError(f"{path}: cannot be written: {_FULL[error.errno]}; {remedy}") from error


def strict_json(value: Any) -> Any:
    """Make ``value`` fit strict JSON: NumPy scalars and paths become plain values, NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as strict JSON, as `write_text` does.

    Raises:
        UserError: The disk is full, or the folder may not be written.
    """
    write_text(path, json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` at once: a reader, or a crash, sees the old file or the new one, whole.

    Raises:
        UserError: The disk is full, or the folder may not be written.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_disk_errors(path):
        try:
            with half.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
