"""Tells the user's own command how a run ended, failed, stopped or started again."""

import os
import subprocess
import sys
from typing import Literal

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
    try:
        status = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=False,
        ).returncode
        trouble = f"ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        trouble = f"did not end within {_PATIENCE_S} s"
    except OSError as error:
        trouble = f"cannot be run: {error.strerror}"
    if trouble:
        sys.stderr.write(f"warning: cluster.notify: {redact_lines(repr(command))} {trouble}\n")
