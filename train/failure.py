"""What a failing rank leaves in the run folder, so that the launcher can name rank, host and step."""

from __future__ import annotations

import time
from pathlib import Path

from logs.folder import write_json
from train.identity import Identity

__all__ = ["failure_path", "is_second_hand", "record_failure"]

_SECOND_HAND = "Horovod has been shut down"
"""How a rank learns that another one failed; it is no cause of its own."""


def failure_path(folder: Path, rank: int) -> Path:
    """Name the file that a failing rank writes."""
    return folder / f"failure_{rank}.json"


def is_second_hand(error: BaseException) -> bool:
    """Tell whether ``error`` only says that another rank failed."""
    return _SECOND_HAND in str(error)


def record_failure(folder: Path, identity: Identity, error: BaseException) -> None:
    """Write what went wrong; never raises, since it is called when things already went wrong."""
    row = {
        "rank": identity.rank,
        "host": identity.host,
        "step": getattr(error, "step", None),
        "message": " ".join(str(error).split())[:2000],
        "second_hand": is_second_hand(error),
        "time": time.time(),
    }
    try:
        write_json(failure_path(folder, identity.rank), row)
    except (OSError, ValueError):
        return
