"""Standard output and error whose reader may be gone, full or asleep: words are lost, and nothing else.

A run of hours must not end, wait or change its exit status because somebody closed a terminal, stopped a pager or
filled the disk of a log. A program whose words are its product waits for a reader. Imports the standard library only.
"""

import io
import os
import select
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PATIENCE_S = 2.0
"""How long a reader is waited for, once: after that, words are lost until the reader takes some again."""

_MOST_BYTES = select.PIPE_BUF
"""What a pipe takes whole if it takes anything, so that lines of several ranks do not mix."""


def guard_outputs(*, waits_for_reader: bool = False) -> None:
    """Let standard output and error of this process lose words rather than raise an error or wait for a reader.

    Closed descriptors are opened on ``/dev/null`` first, because the next file that the process opens would take their
    numbers, and with them the words of libraries; so does bash's own script. For the main module of a program only.

    Args:
        waits_for_reader: Whether words are lost only where nobody can read them: the output is closed or full. For a
            program whose words are its product, and whose work nobody misses while its reader pauses.
    """
    for number in (0, 1, 2):
        if not Path(f"/proc/self/fd/{number}").is_symlink():
            os.open(os.devnull, os.O_RDWR)  # It takes the lowest number that is free, which is this one.
            os.set_inheritable(number, True)  # mpirun takes gigabytes of memory where they are closed (4.1.4, tried).
    sys.stdout, sys.stderr = (
        _text(number, before, waits_for_reader=waits_for_reader)
        for number, before in ((1, sys.stdout), (2, sys.stderr))
    )


def _text(number: int, before: TextIO | None, *, waits_for_reader: bool) -> TextIO:
    encoding = "utf-8" if before is None else before.encoding
    output = _Output(number, waits_for_reader=waits_for_reader)
    return io.TextIOWrapper(output, encoding, "backslashreplace", write_through=True)  # type: ignore[type-var]


class _Output(io.RawIOBase):
    """A descriptor of this process, written to as far as it takes the bytes."""

    def __init__(self, descriptor: int, *, waits_for_reader: bool) -> None:
        self._descriptor = descriptor if waits_for_reader else _without_waiting(descriptor)
        self._waits_for_reader = waits_for_reader
        self._is_read = True

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return a descriptor that does not wait, so that `faulthandler` does not wait either."""
        return self._descriptor

    def write(self, data: "ReadableBuffer", /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        with suppress(OSError):  # Closed, full, or a pipe that another process has filled meanwhile.
            while left:
                if not self._is_ready():
                    break
                left = left[os.write(self._descriptor, left[:_MOST_BYTES]) :]
        return size

    def _is_ready(self) -> bool:
        """Wait for the reader; return whether it takes words."""
        patience_ms = None if self._waits_for_reader else 1000 * _PATIENCE_S if self._is_read else 0
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        self._is_read = bool(ready.poll(patience_ms))
        return self._is_read


def _without_waiting(descriptor: int) -> int:
    """Return a descriptor of the same pipe or terminal that does not wait; for anything else, the descriptor itself.

    Other processes share what is behind the descriptor, and must not lose words that this flag would cost them; so the
    pipe is opened once more. A socket, and a terminal of another user, cannot be opened.
    """
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or os.isatty(descriptor):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return descriptor
