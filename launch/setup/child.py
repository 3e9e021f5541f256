"""Run a long command with its output in a log file and its last line live on the terminal.

When set-up stops, no process of the command is left behind.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.setup.causes import TRY_AGAIN, explain

__all__ = ["StageError", "Stopwatch", "run_logged"]

_TERM_GRACE_S = 3.0
_REDRAW_S = 0.5
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


def run_logged(
    command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str], watch: Stopwatch, lock: int
) -> None:
    """Run ``command`` to its end, appending its output to ``log``.

    Args:
        command: Program and arguments.
        log: File that gets everything the command prints.
        environment: All variables of the command.
        watch: The stage's line on the terminal.
        lock: Descriptor of the set-up lock, which the command inherits.

    Raises:
        StageError: The command failed.
    """
    with log.open("ab") as file:
        # A signal that arrived while the process starts would leave nobody who knows the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(lock,),
                # A process group of its own, so that pip, CMake, make and the compilers can be ended together.
                start_new_session=True,
                preexec_fn=_allow_interrupts,  # noqa: PLW1509 (set-up has one thread)
            )
        except BaseException:
            _allow_interrupts()
            raise
        assert process.stdout is not None
        try:
            _allow_interrupts()
            line = ""
            while True:
                if not select.select([process.stdout], [], [], _REDRAW_S)[0]:
                    watch.tick(line)
                    continue
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                file.write(chunk)
                line = _last_line(chunk) or line
                watch.tick(line)
            status = process.wait()
        finally:
            _end_group(process)
            process.stdout.close()
    if status:
        output = log.read_text(encoding="utf-8", errors="replace")
        killed_by = signal.Signals(-status).name if status < 0 else None
        cause = f"the command was killed by {killed_by}; {TRY_AGAIN}" if killed_by else explain(output)
        raise StageError(f"{cause}\n       all of the output: {log}")


def _allow_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)


def _last_line(chunk: bytes) -> str:
    lines = chunk.decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if not _NOISE.search(line)), "")


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
