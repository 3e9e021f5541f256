"""Run a long command with its output in a log file, and tell why it failed.

When set-up stops, no process of the command is left behind.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TERM_GRACE_S = 3.0
_POLL_S = 0.1
_POLLS_A_DOT = 50

_OF_ANOTHER = re.compile(r"error: (subprocess-exited|metadata-generation)|ERROR: Exception:")
"""Lines in which pip says that another program failed, or itself, before it shows what was printed, or a traceback."""


_WAYS_OUT = (
    "if the package index cannot be reached, a folder lacks a file, or hashes differ: docs/offline.md; if it cannot be "
    "compiled: ./run.sh setup --engine torch"
)


class StageError(Exception):
    """A command of a stage failed.

    The text has two lines: the probable cause with ways out, and the file with the whole output.
    """


def explain(output: str) -> str:
    """Return the probable cause of a failure in one line.

    Args:
        output: All that the failed command printed. The first line that tells an error counts, because later errors
            follow from it; or else the last line.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["the command printed nothing"]
    errors = (line for line in lines if re.search("error: ", line, re.IGNORECASE) and not _OF_ANOTHER.match(line))
    return next(errors, lines[-1])


@contextmanager
def stopwatch(title: str) -> Iterator[None]:
    """Write a stage's line: the title, and at the end of the block the seconds, and whether the stage was not done."""
    start_s, word = time.monotonic(), "not done, "
    _write(f"setup: {title} ...")
    try:
        yield
        word = ""
    finally:
        _write(f" {word}{time.monotonic() - start_s:.0f} s\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class Command:
    """A long command with all of its output in a log file. Whoever starts a command stops it, too."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str],
        lock: int,
    ) -> None:
        """Start the command.

        Args:
            words: Program and arguments.
            log: File to which everything that the command prints is appended.
            environment: All variables of the command.
            lock: Descriptor of the set-up lock, which the command inherits.
        """
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(lock,),
                # A process group of its own, so that pip, CMake, make and the compilers can be ended together.
                start_new_session=True,
            )

    def wait(self, until: str = "") -> None:
        """Wait for the end of the command; on a terminal, write a dot every few seconds.

        Args:
            until: If not empty, return as soon as the output has this text, or the command has ended: the next `wait`
                says how.

        Raises:
            StageError: The command failed.
        """
        for polls in itertools.count(1):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)
            status = self._process.returncode
            if until and (until in self._output() or status is not None):
                return
            if status is not None:
                break
            if polls % _POLLS_A_DOT == 0 and sys.stderr.isatty():
                _write(".")
        if status:
            cause = f"{explain(self._output())}; {_WAYS_OUT}"
            if status < 0:
                signalled = signal.Signals(-status).name
                cause = f"the command was killed by {signalled}; run ./run.sh again: it continues where it stopped"
            raise StageError(f"{cause}\n       all of the output: {self._log}")

    def stop(self) -> None:
        """End all processes that are left of the command: by SIGTERM, and after a grace period by SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERM_GRACE_S)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")
