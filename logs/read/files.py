"""Finds the logs that a user means: a file, a pipe, a run folder, or a folder of other submitters' logs."""

import atexit
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from configs.errors import UserError

NO_EVENT = "no line of an MLPerf log (:::ML) is in it; give the log of a run, as plain text"
"""What is said of a file for which `has_event` is False."""

_TOKEN = b":::ML"
_READ_BYTES = 1 << 20
_MOST_FILES = 1000
_MOST_BYTES = 1 << 30
"""More than any log has; the official checker keeps a whole log in memory."""


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder: ``result_*.txt``, otherwise all files below it that contain an MLPerf event."""
    if found := sorted(path for path in folder.glob("result_*.txt") if path.is_file()):
        return found
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return [path for path in files[:_MOST_FILES] if has_event(path)]


def has_event(path: Path) -> bool:
    """Return whether the beginning of a file has a line of an MLPerf log; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _TOKEN in file.read(_READ_BYTES)
    except OSError:
        return False


def regular_file(path: Path) -> Path:
    """Return ``path``; for ``-``, a pipe or another stream, a regular file with what the stream holds.

    A log is read several times: by the parser, by the checker, and for its digest.

    Raises:
        UserError: If the stream cannot be read or has no event, or if the file is larger than any log.
    """
    is_stdin = str(path) == "-"
    file = path
    if is_stdin or path.is_fifo() or path.is_char_device():
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        file = folder / ("stdin" if is_stdin else path.name)
        try:
            with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as source, file.open("wb") as target:
                while (chunk := source.read(_READ_BYTES)) and target.tell() <= _MOST_BYTES:  # /dev/zero has no end
                    target.write(chunk)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); give a log") from None
        if not has_event(file):
            raise UserError(f"{path}: {NO_EVENT}")
    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise UserError(f"{path}: is larger than {_MOST_BYTES:,} bytes; give the log of a run")
    return file
