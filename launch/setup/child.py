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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TERM_GRACE_S = 3.0
_REDRAW_S = 0.5
_POLL_S = 0.1
_NOISE = re.compile(r"WARNING: Location 'file:|^\s*$|^Looking in |^\s*(cd|/|g?make)\b")
"""Lines that are not shown live: empty lines, pip's lines about its settings, whole command lines of compilers."""

_TRY_AGAIN = "run ./run.sh again: it continues where it stopped"
_AGAIN = f"then {_TRY_AGAIN}"

_CAUSES = (
    (r"No space left on device|Errno 28\b", f"the disk is full; free some space, {_AGAIN}"),
    (
        r"Killed signal terminated program|internal compiler error: Killed|^Killed$|virtual memory exhausted",
        "the compiler ran out of memory; close programs, or compile one file at a time: MAKEFLAGS=-j1 ./run.sh setup",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        f"the package index's certificate is not trusted; point PIP_CERT at your site's certificates, {_AGAIN}",
    ),
    (
        r"name resolution|Failed to establish a new connection|Max retries exceeded|[Rr]ead timed out|ConnectionReset"
        r"|Connection refused|ProxyError|IncompleteRead",
        f"the package index could not be reached; check network, proxy and pip's settings (pip config list), {_AGAIN}; "
        "without a network take the wheels from a folder (docs/offline.md)",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES(?s:.*?)^ +(?P<what>\S+)[^\n]*:\n +Expected",
        "{what} in {place} does not match the lock file's hashes: it is damaged (copy the file again, or pip cache "
        "purge, then ./run.sh again), or of another build (./run.sh setup --without-hashes)",
    ),
    (r"No matching distribution found for (?P<what>[^\s,;]+)", "{place} has no {what} for Python {python}; {way}"),
    (r"[Pp]ermission denied", f"a file could not be written; take ownership of this folder (chown -R), {_AGAIN}"),
    (r"Illegal instruction", "this CPU lacks AVX, FMA or F16C, which Horovod is built with; use a newer machine"),
)
"""Pattern in a failed command's output, and the probable cause with its remedy; the first that matches counts. What a
compiler or a library says well enough by itself is not here. ``place`` is where pip looks for packages."""

_ONLINE_WAY = "check pip's index settings (pip config list)"
_OFFLINE_WAY = (
    "set-up runs offline: fetch it where there is a network, by ./run.sh setup --download FOLDER with that Python and "
    "the options of this set-up (docs/offline.md)"
)

_OF_ANOTHER = re.compile(r"error: (subprocess-exited|metadata-generation)")
"""Lines in which pip says that another program failed, before it shows what that program has printed."""


class StageError(Exception):
    """A command of a stage failed. The text has two lines: the probable cause, and the file with the whole output."""


def explain(output: str, variables: Mapping[str, str], otherwise: str = "") -> str:
    """Return the probable cause of a failure and the remedy in one line.

    Args:
        output: All that the failed command printed. If no known cause matches, the first line that tells an error is
            returned, because later errors follow from it; or else the last line.
        variables: The command's variables, which may forbid pip to ask an index.
        otherwise: What to do if no known cause matches.
    """
    place, way = "the package index", _ONLINE_WAY
    if variables.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on", "y", "t"}:
        place, way = variables.get("PIP_FIND_LINKS") or "no folder (PIP_FIND_LINKS)", _OFFLINE_WAY
        # So pip says it, too, if a folder lacks the one version that a constraint allows.
        output = output.replace("Cannot install", "No matching distribution found for")
    python = "{}.{}".format(*sys.version_info)
    for pattern, cause in _CAUSES:
        if match := re.search(pattern, output, re.MULTILINE):
            return cause.format(place=place, way=way, python=python, **match.groupdict())
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["the command printed nothing"]
    errors = (line for line in lines if re.search("error: ", line, re.IGNORECASE) and not _OF_ANOTHER.match(line))
    # Without the folder of a file of sources.
    found = re.sub(r"^\S*/(?=[^/\s]+:\d)", "", next(errors, lines[-1]))
    return "; ".join(filter(None, (found[:200], otherwise)))


class Stopwatch:
    """A stage's line on the terminal: the title, the command's last line while it runs, the seconds at the end."""

    def __init__(self, title: str) -> None:
        self._title, self._start_s, self._drawn_s = title, time.monotonic(), 0.0
        self._is_live = sys.stderr.isatty()
        self._write(f"setup: {title} ...")

    def tick(self, line: str) -> None:
        """Draw the seconds and ``line`` after the title, at most twice a second; on a terminal only."""
        now_s = time.monotonic()
        if self._is_live and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            text = f"setup: {self._title.partition(':')[0]} ... {now_s - self._start_s:.0f} s  {line}"
            self._write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the line with the seconds, and say so if the stage was not done."""
        before = f"\r\x1b[Ksetup: {self._title} ..." if self._is_live else ""
        word = "not done, " if kind else ""
        self._write(f"{before} {word}{time.monotonic() - self._start_s:.0f} s\n")

    def _write(self, text: str) -> None:
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
        self._log, self._variables, self._otherwise = log, environment, otherwise
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

    def wait(self, watch: Stopwatch, until: str = "") -> None:
        """Show the last line of the output until the command ends.

        Args:
            watch: Where the line is shown.
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
                watch.tick(line)
                if until and (until in seen or status is not None):
                    return
        if status:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            cause = explain(text, self._variables, self._otherwise)
            if status < 0:
                cause = f"the command was killed by {signal.Signals(-status).name}; {_TRY_AGAIN}"
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
