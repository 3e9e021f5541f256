"""What a failing rank leaves in the run folder, so that the launcher can name rank, host and step."""

from __future__ import annotations

import time
from pathlib import Path

from logs.folder import write_json
from train.rank.identity import Identity
from train.rank.signals import Stopped
from train.rank.watchdog import StoodStill

__all__ = ["failure_path", "is_second_hand", "record_failure"]

_SECOND_HAND = ("Horovod has been shut down", "Connection reset by peer", "Connection closed by peer")
"""How a rank learns that another one failed, from Horovod or from Gloo; it is no cause of its own."""


def failure_path(folder: Path, rank: int) -> Path:
    """Name the file that a failing rank writes."""
    return folder / f"failure_{rank}.json"


def is_second_hand(error: BaseException) -> bool:
    """Tell whether ``error`` only says that another rank failed, stands still, or was told to end."""
    if isinstance(error, StoodStill):
        return error.waits
    return isinstance(error, Stopped) or any(words in str(error) for words in _SECOND_HAND)


def record_failure(folder: Path, identity: Identity, error: BaseException, status: int = 1) -> None:
    """Write what went wrong and the exit status to come; never raises, since things already went wrong."""
    row = {
        "rank": identity.rank,
        "host": identity.host,
        "step": getattr(error, "step", None),
        "message": " ".join(str(error).split())[:2000],
        "second_hand": is_second_hand(error),
        "waited": isinstance(error, StoodStill) and error.waits,
        "status": status,
        "time": time.time(),
    }
    try:
        write_json(failure_path(folder, identity.rank), row)
    except (OSError, ValueError):
        return
