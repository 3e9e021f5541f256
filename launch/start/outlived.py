"""Ends a launcher that outlives its ranks.

A launcher learns from another process how a rank on another node ended: srun from Slurm's slurmstepd. Where that
process is killed, as by a node that is short of memory, srun waits until the job's time is over (Slurm 22.05, tried).
The ranks themselves have ended by then, and their failure reports are in the run folder.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from configs.errors import STOPPED_STATUS
from launch.start.local import GRACE_S, KILL_S

LINGER_S = GRACE_S + KILL_S
"""Time for a launcher to end after a rank has reported a failure, as much as the local launcher gives its ranks."""

_LOOK_S = 1.0
"""The run folder may be on a file server."""

_PATIENCE_S = 10
"""Time for Slurm's controller to answer."""


class OutlivedLauncher:
    """Ends the launcher of a run if it is still there `LINGER_S` after a rank has reported a failure.

    Args:
        folder: The run folder.
        kill: Kills the launcher, and returns whether there was one.
    """

    def __init__(self, folder: Path, kill: Callable[[], bool]) -> None:
        self._folder, self._kill = folder, kill
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
        elif now_s > self._ended_s + LINGER_S and self._kill():
            sys.stderr.write(f"the launcher still ran {LINGER_S:.0f} s after a rank had failed, and was killed\n")


def _tells_the_end(report: Path) -> bool:
    """Return whether a failure report means that the run is over.

    Ranks that are told to stop end one after the other, and rank 0 writes the checkpoint before it reports.
    """
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        return bool(found["status"] != STOPPED_STATUS or found["rank"] == 0)
    except (OSError, ValueError, KeyError, TypeError):  # The report is being written.
        return False


def kill_launcher_of(script: int, folder: Path) -> bool:
    """Kill what a job script has started for a run, but not this process; return whether there was anything.

    Args:
        script: Process id of the script.
        folder: The run folder, which is in the command line of the launcher.
    """
    found = _children(script, folder)
    if found and (job := os.environ.get("SLURM_JOB_ID")):
        _kill_steps(job)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _kill_steps(job: str) -> None:
    """Kill the ranks of a Slurm job, which would outlive srun. Without a step's number, scancel ends the job itself."""
    with suppress(OSError, subprocess.TimeoutExpired):
        told = _asked("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i").split()
        if steps := [step for step in told if step.rpartition(".")[2].isdigit()]:  # and not the step of the script
            _asked("scancel", *steps)


def _asked(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PATIENCE_S).stdout


def _children(script: int, folder: Path) -> list[int]:
    found = []
    with suppress(OSError):
        for pid in Path(f"/proc/{script}/task/{script}/children").read_text(encoding="ascii").split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if int(pid) != os.getpid() and os.fsencode(folder) in words:
                found.append(int(pid))
    return found
