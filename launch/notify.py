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

_PATIENCE_S = 30


def notify(folder: RunFolder, event: Literal["end", "failure", "restart", "stop"], message: str) -> None:
    """Run ``cluster.notify`` with the facts in variables; a command that fails or hangs is reported, and no more.

    Args:
        folder: The run folder, RUN_FOLDER of the command; without ``cluster.notify``, nothing happens.
        event: RUN_EVENT of the command.
        message: What happened, in one line; RUN_MESSAGE of the command.
    """
    command = folder.cluster.notify
    if not command:
        return
    variables = {"RUN_FOLDER": str(folder.path.absolute()), "RUN_EVENT": event, "RUN_MESSAGE": message}
    trouble = _trouble_of(["bash", "-c", command], {**os.environ, **variables})
    if trouble:
        sys.stderr.write(f"warning: cluster.notify: {redact_lines(repr(command))} {trouble}\n")


def _trouble_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command, with all that it starts for `_PATIENCE_S` at most; return what went wrong, or nothing."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        signal_groups([process], signal.SIGKILL)
        return f"did not end within {_PATIENCE_S} s, and was killed"
    return f"ended with status {status}" if status else ""
