"""Tells the user's own command how a run ended, failed, stopped or started again."""

import os
import signal
import subprocess
import sys
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
    environment, trouble = {**os.environ, **variables}, ""
    try:
        process = subprocess.Popen(
            ["bash", "-c", command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if status := process.wait(patience_s):
            trouble = f"ended with status {status}"
    except OSError as error:
        trouble = f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        signal_groups([process], signal.SIGKILL)
        trouble = f"did not end within {patience_s} s, and was killed"
    if trouble:
        sys.stderr.write(f"warning: cluster.notify: {redact_lines(repr(command))} {trouble}\n")
