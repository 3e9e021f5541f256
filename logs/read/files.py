"""Finds the logs that a user means: a file, a pipe, a run folder, or a folder of other submitters' logs."""

import atexit
import codecs
import os
import re
import select
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from configs.errors import UserError

_TOKEN = b":::ML"
_READ_BYTES = 1 << 20
_MOST_FILES = 1000
_MOST_BYTES = 1 << 30
"""More than any log has; the official checker keeps a whole log in memory."""

_PATIENCE_S = 60.0
"""How long the writer of a pipe may take to begin."""

_FOREIGN = (
    (rb"\Z", "the file is empty; give the log of a run"),
    (rb"\x1f\x8b|PK\x03\x04|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "the file is compressed; unpack it first"),
    (rb"\xff\xfe|\xfe\xff", "the file is text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8"),
    (
        rb"(?s).*:::ML[^\n]*\x1b\[",
        r"the lines have colour codes of a terminal; remove them: sed -E 's/\x1b\[[0-9;]*[A-Za-z]//g'",
    ),
    (
        rb"(?s).*:::MLLOG[ \t]*\{?[ \t]*\r?\n",
        "an event is spread over several lines; write each event on one line, behind :::MLLOG",
    ),
    (rb"(?s).*:::ML", None),
    (rb"(?s).*\0", "the file is not text; give the log of a run"),
    (rb"\s*[{\[]", "the file is JSON without :::MLLOG; write each event on one line, behind that token"),
)
"""Pattern of a file's beginning -> what it holds in place of a log, and a remedy; None for a log. The first counts."""


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder: ``result_*.txt``, otherwise all files below it that contain an MLPerf event."""
    if found := sorted(path for path in folder.glob("result_*.txt") if path.is_file()):
        return found
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return [path for path in files[:_MOST_FILES] if _is_log(path)]


def _is_log(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _TOKEN in file.read(_READ_BYTES)
    except OSError:
        return False


def regular_file(path: Path) -> Path:
    """Return ``path``; for ``-``, a pipe or another stream, a regular file with what the stream holds.

    A log is read several times: by the parser, by the checker, and for its digest. Of a stream that is no log, the
    beginning is kept: /dev/zero has no end.

    Raises:
        UserError: If the stream cannot be read, if nobody writes to it, or if the file is larger than any log.
    """
    is_stdin = str(path) == "-"
    file = path
    if is_stdin or path.is_fifo() or path.is_char_device():
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        file = folder / ("stdin" if is_stdin else path.name)
        try:
            with nullcontext(sys.stdin.buffer) if is_stdin else _opened(path) as source, file.open("wb") as target:
                while (chunk := source.read(_READ_BYTES)) and target.tell() <= _MOST_BYTES:
                    target.write(chunk)
                    if target.tell() == len(chunk) and b"\0" in chunk and _TOKEN not in chunk:
                        break
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); give a log") from None
        if words := foreign_content(file):
            raise UserError(f"{path}: {words}")
    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise UserError(f"{path}: is larger than {_MOST_BYTES:,} bytes; give the log of a run")
    return file


def _opened(path: Path) -> BinaryIO:
    """Open a stream without waiting for its writer to open it, too."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if path.is_fifo() and not select.select([stream], [], [], _PATIENCE_S)[0]:
        stream.close()
        raise UserError(f"{path}: nobody has written to this pipe for {_PATIENCE_S:.0f} s; give a log")
    os.set_blocking(stream.fileno(), True)
    return stream


def foreign_content(log: Path) -> str | None:
    """Return what a file holds in place of a readable MLPerf log, with a remedy; None if it may be a log.

    Raises:
        OSError: The file cannot be read.
    """
    with log.open("rb") as file:
        begin = file.read(_READ_BYTES).removeprefix(codecs.BOM_UTF8)
    return next((words for pattern, words in _FOREIGN if re.match(pattern, begin)), None)
