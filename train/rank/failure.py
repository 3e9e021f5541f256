"""The failure report that a rank leaves in the run folder, from which the launcher names rank, host and step."""

import time
from pathlib import Path

from logs.disk import write_json
from train.rank.identity import Identity
from train.rank.signals import Stopped
from train.rank.watchdog import StoodStill

_SECOND_HAND = (
    "Horovod has been shut down",
    "Connection reset by peer",
    "Connection closed by peer",
    "gloo/transport/",
    "ncclRemoteError",
    "the ranks did not connect within",
)
"""Errors by which a communication library reports that *another* rank failed; such an error is never the first cause.
"""


def failure_path(folder: Path, rank: int) -> Path:
    """Return the path of the failure report of a rank."""
    return folder / f"failure_{rank}.json"


def is_second_hand(error: BaseException) -> bool:
    """Return whether ``error`` only reports that another rank failed, made no progress or was told to end."""
    if isinstance(error, StoodStill):
        return error.waits
    return isinstance(error, Stopped) or any(words in str(error) for words in _SECOND_HAND)


def one_line(error: BaseException) -> str:
    """Return what an error says in one line of at most 2,000 characters; of a traceback in it, as MXNet's, the end."""
    text = str(error).strip()
    if text.startswith("Traceback "):
        text = text.splitlines()[-1]
    return " ".join(text.split())[:2000]


def record_failure(folder: Path, identity: Identity, error: BaseException, status: int = 1) -> None:
    """Write the failure report of this rank; never raises, because it runs while another error is being handled."""
    row = {
        "rank": identity.rank,
        "host": identity.host,
        "step": getattr(error, "step", None),
        "message": one_line(error),
        "second_hand": is_second_hand(error),
        "waited": isinstance(error, StoodStill) and error.waits,
        "status": status,
        "time": time.time(),
    }
    try:
        write_json(failure_path(folder, identity.rank), row)
    except (OSError, ValueError):
        return
