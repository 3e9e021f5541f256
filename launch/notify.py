"""Tells the user's own command how a run ended, failed, stopped or started again."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from configs.schema import Cluster
from logs.redaction import redact_lines

_PATIENCE_S = 30


def notify(cluster: Cluster, folder: Path, event: Literal["end", "failure", "restart", "stop"], message: str) -> None:
    """Run ``cluster.notify`` with the facts in variables; a command that fails or hangs is reported, and no more.

    Args:
        cluster: The cluster of the run; without ``notify``, nothing happens.
        folder: The run folder, RUN_FOLDER of the command.
        event: RUN_EVENT of the command.
        message: What happened, in one line; RUN_MESSAGE of the command.
    """
    if not cluster.notify:
        return
    variables = {"RUN_FOLDER": str(folder.absolute()), "RUN_EVENT": event, "RUN_MESSAGE": message}
    try:
        status = subprocess.run(
            ["bash", "-c", cluster.notify],
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
        sys.stderr.write(f"warning: cluster.notify: {redact_lines(repr(cluster.notify))} {trouble}\n")
