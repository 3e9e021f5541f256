"""Finds the logs of a run folder, or of a folder of other submitters' logs."""

from pathlib import Path

from configs.errors import UserError

NO_EVENT = "no line of an MLPerf log (:::ML) is in it; give the log of a run, as plain text"
"""What is said of a file for which `has_event` is False."""

_TOKEN = b":::ML"
_READ_BYTES = 1 << 20
_MOST_FILES = 10_000


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder: ``result_*.txt``, otherwise all files below it that contain an MLPerf event.

    Raises:
        UserError: There are too many files to look for logs in each.
    """
    if found := sorted(path for path in folder.glob("result_*.txt") if path.is_file()):
        return found
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    if len(files) > _MOST_FILES:
        raise UserError(f"{folder}: has {len(files):,} files, too many to look for logs; give run folders or logs")
    return [path for path in files if has_event(path)]


def has_event(path: Path) -> bool:
    """Return whether the beginning of a file has a line of an MLPerf log; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _TOKEN in file.read(_READ_BYTES)
    except OSError:
        return False
