"""Finds the logs of a run folder, or of a folder of other submitters' logs."""

from collections.abc import Iterator
from pathlib import Path

from configs.errors import UserError
from configs.reading import entries

NO_EVENT = "no line of an MLPerf log (:::ML) is in it; give the log of a run, as plain text"
"""What is said of a file for which `has_event` is False."""

_TOKEN = b":::ML"
_READ_BYTES = 1 << 20
_MOST_FILES = 10_000
_WITHOUT_LOGS = (".git", "lost+found")


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder: ``result_*.txt``, otherwise all files below it that contain an MLPerf event.

    Raises:
        UserError: There are too many files to look for logs in each, or a folder cannot be read.
    """
    if found := [path for path in entries(folder) if path.match("result_*.txt") and path.is_file()]:
        return found
    files = list(_files_below(folder))
    if len(files) > _MOST_FILES:
        raise UserError(f"{folder}: has {len(files):,} files, too many to look for logs; give run folders or logs")
    return [path for path in files if has_event(path)]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder; `Path.rglob` passes over folders that may not be read."""
    for path in (each for each in entries(folder) if each.name not in _WITHOUT_LOGS):
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def has_event(path: Path) -> bool:
    """Return whether the beginning of a file has a line of an MLPerf log; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _TOKEN in file.read(_READ_BYTES)
    except OSError:
        return False
