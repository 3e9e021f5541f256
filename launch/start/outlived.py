"""Ends a launcher that outlives its ranks.

A launcher learns from another process how a rank on another node ended: srun from Slurm's slurmstepd. Where that
process is killed, as by a node that is short of memory, srun waits until the job's time is over (Slurm 22.05, tried).
The ranks themselves have ended by then, and their failure reports are in the run folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from configs.errors import STOPPED_STATUS

__all__ = ["LINGER_S", "OutlivedLauncher", "launchers_of"]

LINGER_S = 20.0
"""Time for a launcher to end after a rank has reported a failure; srun took up to 16 s (docs/faults.md)."""

_LOOK_S = 1.0
"""The run folder may be on a file server."""


class OutlivedLauncher:
    """Kills the launcher of a run if it is still there `LINGER_S` after the end of a rank.

    Args:
        folder: The run folder.
        find: Returns the process ids of the launcher.
    """

    def __init__(self, folder: Path, find: Callable[[], list[int]]) -> None:
        self._folder, self._find = folder, find
        self._looked_s = float("-inf")
        self._ended_s: float | None = None

    def look(self) -> None:
        """Look for the end of a rank, at most once a second, and kill the launcher when its time is over."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        if not any(map(_tells_the_end, self._folder.glob("failure_*.json"))):
            self._ended_s = None
        elif self._ended_s is None:
            self._ended_s = now_s
        elif now_s > self._ended_s + LINGER_S:
            self._kill()

    def _kill(self) -> None:
        for pid in self._find():
            sys.stderr.write(f"the launcher still ran {LINGER_S:.0f} s after a rank had failed, and was killed\n")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _tells_the_end(report: Path) -> bool:
    """Return whether a failure report means that the run is over.

    Ranks that are told to stop end one after the other, and rank 0 writes the checkpoint before it reports.
    """
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        return bool(found["status"] != STOPPED_STATUS or found["rank"] == 0)
    except (OSError, ValueError, KeyError, TypeError):  # The report is being written.
        return False


def launchers_of(script: int, folder: Path) -> list[int]:
    """Return the processes that a job script has started for a run, without this process.

    Args:
        script: Process id of the script.
        folder: The run folder, which is in the command lines of its launcher.
    """
    found = []
    with suppress(OSError):
        children = Path(f"/proc/{script}/task/{script}/children").read_text(encoding="ascii").split()
        for pid in map(int, children):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if pid != os.getpid() and os.fsencode(folder) in words:
                found.append(pid)
    return found
