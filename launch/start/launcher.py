"""Run a launcher to its end: pass signals on to it, and end it if it outlives its ranks.

A launcher learns from another process how a rank on another node ended: srun from Slurm's slurmstepd. Where that
process is killed, as by a node that is short of memory, srun waits until the job's time is over (Slurm 22.05, tried).
The ranks themselves have ended by then, and their failure reports are in the run folder.
"""

import io
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TextIO

from configs.errors import STOPPED_STATUS
from configs.interrupts import ended_with_parent
from configs.reading import Unreadable
from launch.start.inherited import without_ranks
from launch.start.launcher_signals import STOP_SIGNALS, forwarded_signals, signal_groups
from launch.start.local import GRACE_S, KILL_S, STOP_S, Outcome
from logs.disk import found_object

LINGER_S = GRACE_S + KILL_S
"""Time for a launcher to end after a rank has reported a failure, as much as the local launcher gives its ranks."""

_LOOK_S = 1.0
"""The run folder may be on a file server."""

_POLL_S = 0.05
_LAST_WORDS_S = 2.0
"""Time for what a launcher has written before its end; what it has left behind may keep the pipe open."""

ANSWER_S = 10
"""Time for Slurm's controller to answer."""


def run_launcher(
    command: Sequence[str], variables: Mapping[str, str], stop_signal: signal.Signals, stop_file: Path | None
) -> Outcome:
    """Run a launcher. A signal that stops this process is passed on as the signal that the launcher gives its ranks.

    Ranks that have not saved their state `STOP_S` later are ended. Ctrl-C has no limit: the user can press it again.

    Args:
        command: The launcher's command line; its last word is the run folder.
        variables: Variables on top of this process's own.
        stop_signal: What makes the launcher's ranks save their state.
        stop_file: A file that tells the ranks to do so; the launcher then gets the signal only after `STOP_S`.
    """
    # mpirun refuses to run as root without these variables; other launchers do not read them.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    with forwarded_signals() as last_signal:
        pipes = [subprocess.PIPE if _may_break(descriptor) else None for descriptor in (1, 2)]
        process = subprocess.Popen(
            ended_with_parent(command),  # and the launcher ends its ranks
            # mpirun in a Slurm job starts its daemons by srun, which would keep the variables from them after NONE.
            env={**without_ranks(), **variables, **root, "SLURM_EXPORT_ENV": "ALL"},
            stdin=subprocess.DEVNULL,
            # A session of its own, so that Ctrl-C reaches the launcher once, through this process.
            start_new_session=True,
            stdout=pipes[0],
            stderr=pipes[1],
        )
        with _outputs_passed_on(process):
            outlived = OutlivedLauncher(Path(command[-1]), partial(_kill, process))
            passed_on, is_killed = _wait_for(process, outlived, last_signal, stop_signal, stop_file)
    status = 128 - process.returncode if process.returncode < 0 else process.returncode
    if is_killed:
        return Outcome(status, interrupted_by=passed_on)
    if passed_on in STOP_SIGNALS:
        return Outcome(status, stopped_by=passed_on)
    return Outcome(status, interrupted_by=None if passed_on is None else signal.SIGINT)


def _wait_for(
    process: subprocess.Popen[bytes],
    outlived: "OutlivedLauncher",
    last_signal: Callable[[], int | None],
    stop_signal: signal.Signals,
    stop_file: Path | None,
) -> tuple[int | None, bool]:
    """Wait for a launcher; return the last signal that was passed on, and whether its time was over."""
    passed_on = deadline_s = None
    is_asked = is_killed = False
    while process.poll() is None:
        outlived.look()
        if last_signal() not in (None, passed_on):
            passed_on = last_signal()
            deadline_s = None if passed_on == signal.SIGINT else time.monotonic() + STOP_S
            if passed_on == signal.SIGKILL:
                _end_at_once(process)
            elif stop_file and stop_file.parent.is_dir():
                stop_file.touch()
            else:
                process.send_signal(stop_signal)
                is_asked = True
        if deadline_s is not None and time.monotonic() > deadline_s:
            if is_asked:
                _end_at_once(process)
                is_killed = True
            else:
                process.send_signal(stop_signal)
            is_asked, deadline_s = True, time.monotonic() + STOP_S
        time.sleep(_POLL_S)
    return passed_on, is_killed


def _kill(process: subprocess.Popen[bytes]) -> bool:
    signal_groups([process], signal.SIGKILL)
    return True


def _may_break(descriptor: int) -> bool:
    """Return whether an output of this process is a pipe or a socket, whose reader may go.

    mpirun crashes at a stop signal when its reader is gone (4.1.4, tried), so it writes to this process instead.
    """
    try:
        kind = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)


@contextmanager
def _outputs_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Write to the outputs of this process, while the block runs, what a launcher prints into pipes."""
    pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    threads = [threading.Thread(target=_pass_on, args=each, daemon=True) for each in pairs if each[0] is not None]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(_LAST_WORDS_S)


def _pass_on(source: IO[bytes], sink: TextIO) -> None:
    # Without newline="", a progress bar's return would become a new line.
    for line in io.TextIOWrapper(source, "utf-8", "backslashreplace", newline=""):
        sink.write(line)
        sink.flush()


def _end_at_once(process: subprocess.Popen[bytes]) -> None:
    """End a launcher with its ranks. srun and mpirun take two SIGINTs within a second as an order to kill the ranks."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.3 if number == signal.SIGINT else KILL_S)
            return


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
        has_ended = self._ended_s is not None
        with suppress(OSError, Unreadable):  # A second later it looks again.
            has_ended = any(map(_tells_the_end, self._folder.glob("failure_*.json")))
        self._ended_s = (self._ended_s or now_s) if has_ended else None
        if self._ended_s is not None and now_s > self._ended_s + LINGER_S and self._kill():
            sys.stderr.write(f"the launcher still ran {LINGER_S:.0f} s after a rank had failed, and was killed\n")


def _tells_the_end(report: Path) -> bool:
    """Return whether a failure report means that the run is over.

    Ranks that are told to stop end one after the other, and rank 0 writes the checkpoint before it reports.
    """
    found = found_object(report)  # empty while the report is being written
    return found.keys() >= {"status", "rank"} and (found["status"] != STOPPED_STATUS or found["rank"] == 0)


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
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=ANSWER_S).stdout


def _children(script: int, folder: Path) -> list[int]:
    found = []
    with suppress(OSError):
        for pid in Path(f"/proc/{script}/task/{script}/children").read_text(encoding="ascii").split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if int(pid) != os.getpid() and os.fsencode(folder) in words:
                found.append(int(pid))
    return found
