"""Run a long command with its output in a log file and its last line live on the terminal; explain its failure.

When set-up stops, no process of the command is left behind.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TERM_GRACE_S = 3.0
_REDRAW_S = 0.5
_POLL_S = 0.1
_NOISE = re.compile(r"WARNING: Location 'file:|^\s*$|^Looking in |^\s*(cd|/|g?make)\b")
"""Lines that are not shown live: empty lines, pip's lines about its settings, whole command lines of compilers."""

_CAUSES = (
    (
        r"Killed signal terminated program|internal compiler error: Killed|^Killed$|virtual memory exhausted",
        "the compiler ran out of memory; close programs, or compile one file at a time: MAKEFLAGS=-j1 ./run.sh setup",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|name resolution|Failed to establish a new connection|Max retries exceeded"
        r"|[Rr]ead timed out|ConnectionReset|Connection refused|ProxyError|IncompleteRead",
        "the package index could not be reached; check network, proxy, certificates (PIP_CERT) and pip's settings (pip "
        "config list), then run ./run.sh again; without a network take the wheels from a folder (docs/offline.md)",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES(?s:.*?)^ +(?P<what>\S+)[^\n]*:\n +Expected",
        "{what} does not match the lock file's hashes: it is damaged (copy the file again, or pip cache purge, then "
        "./run.sh again), or of another build (./run.sh setup --without-hashes)",
    ),
    (r"Illegal instruction", "this CPU lacks AVX, FMA or F16C, which Horovod is built with; use a newer machine"),
)
"""Pattern in a failed command's output, and the probable cause with its remedy; the first that matches counts. What a
compiler or pip says well enough by itself is not here."""

_OF_ANOTHER = re.compile(r"error: (subprocess-exited|metadata-generation)")
"""Lines in which pip says that another program failed, before it shows what that program has printed."""


class StageError(Exception):
    """A command of a stage failed. The text has two lines: the probable cause, and the file with the whole output."""


def explain(output: str, otherwise: str = "") -> str:
    """Return the probable cause of a failure and the remedy in one line.

    Args:
        output: All that the failed command printed. If no known cause matches, the first line that tells an error is
            returned, because later errors follow from it; or else the last line.
        otherwise: What to do if no known cause matches.
    """
    for pattern, cause in _CAUSES:
        if match := re.search(pattern, output, re.MULTILINE):
            return cause.format(**match.groupdict())
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["the command printed nothing"]
    errors = (line for line in lines if re.search("error: ", line, re.IGNORECASE) and not _OF_ANOTHER.match(line))
    # Without the folder of a file of sources.
    found = re.sub(r"^\S*/(?=[^/\s]+:\d)", "", next(errors, lines[-1]))
    return "; ".join(filter(None, (found[:200], otherwise)))


@contextmanager
def stopwatch(title: str) -> Iterator[Callable[[str], None]]:
    """Write a stage's line: the title, and at the end of the block the seconds, and whether the stage was not done.

    Yields:
        The function that draws the seconds and a line after the title, at most twice a second; on a terminal only.
    """
    start_s, drawn_s, is_live = time.monotonic(), 0.0, sys.stderr.isatty()

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def tick(line: str) -> None:
        nonlocal drawn_s
        now_s = time.monotonic()
        if is_live and now_s - drawn_s >= _REDRAW_S:
            drawn_s = now_s
            text = f"setup: {title.partition(':')[0]} ... {now_s - start_s:.0f} s  {line}"
            write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")

    write(f"setup: {title} ...")
    word = "not done, "
    try:
        yield tick
        word = ""
    finally:
        before = f"\r\x1b[Ksetup: {title} ..." if is_live else ""
        write(f"{before} {word}{time.monotonic() - start_s:.0f} s\n")


class Command:
    """A long command with all of its output in a log file. Whoever starts a command stops it, too."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str],
        lock: int,
        otherwise: str = "",
    ) -> None:
        """Start the command.

        Args:
            words: Program and arguments.
            log: File to which everything that the command prints is appended.
            environment: All variables of the command.
            lock: Descriptor of the set-up lock, which the command inherits.
            otherwise: What to do if the command fails and no known cause matches.
        """
        self._log, self._otherwise = log, otherwise
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

    def wait(self, tick: Callable[[str], None], until: str = "") -> None:
        """Show the last line of the output until the command ends.

        Args:
            tick: Shows a line.
            until: If not empty, return as soon as the output has this text, or the command has ended: the next `wait`
                says how.

        Raises:
            StageError: The command failed.
        """
        seen, line, status = "", "", None
        with self._log.open(encoding="utf-8", errors="replace") as output:
            while status is None:
                with suppress(subprocess.TimeoutExpired):
                    status = self._process.wait(_POLL_S)
                seen = seen[-len(until) :] + output.read() if until else output.read()
                line = _last_line(seen) or line
                tick(line)
                if until and (until in seen or status is not None):
                    return
        if status:
            cause = explain(self._log.read_text(encoding="utf-8", errors="replace"), self._otherwise)
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


def _last_line(chunk: str) -> str:
    return next((line.strip() for line in reversed(chunk.splitlines()) if not _NOISE.search(line)), "")
