"""Starts a process for each tracker that follows a run, and waits for it a little when the run has ended."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs.programs import Program, command_of
from launch.start.launcher_signals import signal_groups
from logs.folder import RunFolder
from logs.track.trackers import FOLDER

PATIENCE_S = 60.0
"""How long a launcher whose run has ended waits for a tracker to send what is left."""


@contextmanager
def tracked(folder: RunFolder, names: Sequence[str], patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Send the run's numbers to trackers while the block runs.

    A tracker that fails, or does not end in time, is a warning: the run is what counts, and ``metrics.jsonl`` has it.

    Args:
        folder: The run folder.
        names: The trackers.
        patience_s: How long to wait for each tracker at the end.
    """
    if names:
        (folder / FOLDER).mkdir(exist_ok=True)
    started = [(name, _start(folder.path, name)) for name in names]
    try:
        yield
    finally:
        for _, process in started:
            assert process.stdin is not None
            process.stdin.close()
        for name, process in started:
            _end(folder, name, process, patience_s)


def _start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C on the terminal is for the ranks, and what they still report is to be sent.
    with (folder / FOLDER / f"{name}.log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            command_of(Program.TRACKER, str(folder.absolute()), name), stdin=subprocess.PIPE, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip


def _end(folder: RunFolder, name: str, process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    log = folder / FOLDER / f"{name}.log"
    try:
        status = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        signal_groups([process], signal.SIGKILL)
        problem = f"did not end within {patience_s:g} s of the run and was stopped"
    else:
        if status == 0:
            return
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        problem = f"failed: {lines[-1].strip().rstrip('.')}" if lines else f"failed with status {status}"
    sys.stderr.write(
        f"warning: {folder.shown}: {name} {problem}; metrics.jsonl has all numbers, {log.name} the reason\n"
    )
