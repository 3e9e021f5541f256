"""Run a long command with its output in a log file and its last line live on the terminal.

When set-up stops, no process of the command is left behind.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launch.setup.causes import TRY_AGAIN, explain

_TERM_GRACE_S = 3.0
_REDRAW_S = 0.5
_POLL_S = 0.1
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_NOISE = re.compile(r"WARNING: Location 'file:|^\s*$|^Looking in |^\s*(cd|/|g?make)\b")
"""Lines that are not shown live: empty lines, pip's lines about its settings, whole command lines of compilers."""


class StageError(Exception):
    """A command of a stage failed. The text has two lines: the probable cause, and the file with the whole output."""


class Stopwatch:
    """A stage's line on the terminal: the title, the command's last line while it runs, the seconds at the end."""

    def __init__(self, title: str) -> None:
        self._title, self._start_s, self._drawn_s = title, time.monotonic(), 0.0
        self._is_live = sys.stderr.isatty()
        sys.stderr.write(f"setup: {title} ...")
        sys.stderr.flush()

    def tick(self, line: str) -> None:
        """Draw the seconds and ``line`` after the title, at most twice a second; on a terminal only."""
        now_s = time.monotonic()
        if self._is_live and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            text = f"setup: {self._title.partition(':')[0]} ... {now_s - self._start_s:.0f} s  {line}"
            sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()

    def end(self, word: str = "") -> None:
        """End the line with the seconds; ``word`` stands before them if the stage was not done."""
        before = f"\r\x1b[Ksetup: {self._title} ..." if self._is_live else ""
        sys.stderr.write(f"{before} {word}{time.monotonic() - self._start_s:.0f} s\n")
        sys.stderr.flush()


class Command:
    """A long command with all of its output in a log file."""

    def __init__(self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str], lock: int) -> None:
        """Prepare the command; `start` starts it.

        Args:
            command: Program and arguments.
            log: File to which everything that the command prints is appended.
            environment: All variables of the command.
            lock: Descriptor of the set-up lock, which the command inherits.
        """
        self._words, self._log, self._environment, self._lock = [str(word) for word in command], log, environment, lock
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command. Whoever calls this calls `stop` too, also after an exception in here."""
        with self._log.open("ab") as output:
            # A signal that arrived while the process starts would leave nobody who knows the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
            try:
                self._process = subprocess.Popen(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    pass_fds=(self._lock,),
                    # A process group of its own, so that pip, CMake, make and the compilers can be ended together.
                    start_new_session=True,
                    preexec_fn=_allow_interrupts,  # noqa: PLW1509 (set-up has one thread)
                )
            finally:
                _allow_interrupts()

    def wait(self, watch: Stopwatch) -> None:
        """Show the last line of the output until the command ends.

        Raises:
            StageError: The command failed.
        """
        assert self._process is not None
        line, status = "", None
        with self._log.open("rb") as output:
            while status is None:
                with suppress(subprocess.TimeoutExpired):
                    status = self._process.wait(_REDRAW_S)
                line = _last_line(output.read().decode(errors="replace")) or line
                watch.tick(line)
        if status:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            killed_by = signal.Signals(-status).name if status < 0 else None
            cause = f"the command was killed by {killed_by}; {TRY_AGAIN}" if killed_by else explain(text)
            raise StageError(f"{cause}\n       all of the output: {self._log}")

    def wait_for(self, text: str, watch: Stopwatch) -> None:
        """Show the last line of the output until the output has ``text``, or the command has ended; `wait` says how."""
        assert self._process is not None
        seen = ""
        with self._log.open(encoding="utf-8", errors="replace") as output:
            while text not in seen and self._process.poll() is None:
                time.sleep(_POLL_S)
                seen += output.read()
                watch.tick(_last_line(seen))

    def stop(self) -> None:
        """End all that is left of the command."""
        if self._process is not None:
            _end_group(self._process)


def run_logged(
    command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str], watch: Stopwatch, lock: int
) -> None:
    """Run a `Command` to its end, with its last line on ``watch``.

    Raises:
        StageError: The command failed.
    """
    started = Command(command, log=log, environment=environment, lock=lock)
    try:
        started.start()
        started.wait(watch)
    finally:
        started.stop()


def _allow_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)


def _last_line(chunk: str) -> str:
    return next((line.strip() for line in reversed(chunk.splitlines()) if not _NOISE.search(line)), "")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End all processes that are left of the command: SIGTERM to the process group, SIGKILL after a grace period."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_TERM_GRACE_S)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        return
