"""Tells the user's own command how a run ended, failed, stopped or started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from launch.start.launcher_signals import signal_groups
from logs.folder import RunFolder
from logs.redaction import redact_lines


def notify(
    folder: RunFolder, event: Literal["end", "failure", "restart", "stop"], message: str, patience_s: float = 30
) -> None:
    """Run ``cluster.notify`` with the facts in variables; a command that fails or hangs is reported, and no more.

    Args:
        folder: The run folder, RUN_FOLDER of the command; without ``cluster.notify``, nothing happens.
        event: RUN_EVENT of the command.
        message: What happened, in one line; RUN_MESSAGE of the command.
        patience_s: Time after which the command is killed with all that it started.
    """
    command = folder.cluster.notify
    if not command:
        return
    variables = {"RUN_FOLDER": str(folder.path.absolute()), "RUN_EVENT": event, "RUN_MESSAGE": message}
    trouble = _trouble_of(["bash", "-c", command], {**os.environ, **variables}, patience_s)
    if trouble:
        sys.stderr.write(f"warning: cluster.notify: {redact_lines(repr(command))} {trouble}\n")


def _trouble_of(command: Sequence[str], environment: Mapping[str, str], patience_s: float) -> str:
    """Run a command, with all that it starts for a time at most; return what went wrong, or nothing."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    try:
        status = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        signal_groups([process], signal.SIGKILL)
        return f"did not end within {patience_s} s, and was killed"
    return f"ended with status {status}" if status else ""
