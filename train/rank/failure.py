"""The failure report that a rank leaves in the run folder, from which the launcher names rank, host and step."""

import threading
import time
from contextlib import suppress
from pathlib import Path

from configs.arguments import in_words
from configs.errors import UserError
from logs.checkpoints import RESUME_FILE
from logs.disk import write_json
from train.rank.identity import Identity
from train.rank.signals import Stopped
from train.rank.watchdog import StoodStill

_SECOND_HAND = (
    "Horovod has been shut down",
    "Connection reset by peer",
    "Connection closed by peer",
    "gloo/transport/",
    "Read error [",  # which MXNet makes of a line of Gloo
    "ncclRemoteError",
    "the ranks did not connect within",
)
"""Errors by which a communication library reports that *another* rank failed; such an error is never the first cause.
"""

_reporting = threading.Lock()
"""The watchdog's thread and the main thread may fail at the same time."""


def is_second_hand(error: BaseException) -> bool:
    """Return whether ``error`` only reports that another rank failed, made no progress or was told to end."""
    if isinstance(error, StoodStill):
        return error.waits
    if isinstance(error, UserError) or isinstance(error.__cause__, UserError):
        return False  # A file server may reset its connection, too.
    return isinstance(error, Stopped) or any(words in str(error) for words in _SECOND_HAND)


def one_line(error: BaseException) -> str:
    """Return what an error says in one line of at most 2,000 characters; of a traceback in it, as MXNet's, the end."""
    text = (in_words(error) if isinstance(error, Exception) else str(error)).strip()
    if "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    return " ".join(text.split())[:2000]


def record_failure(folder: Path, identity: Identity, error: BaseException, status: int = 1) -> bool:
    """Write the failure report of this rank, unless it has written one: what follows a failure is no cause of it.

    Return whether the launcher tells its words if the rank has refused: it does where a run is resumed.
    Never raises, because it runs while another error is being handled. A comparison of the ranks fails on all of them
    with the same error. The error's ``ranks`` are those that differ from the others, none if nobody can tell.
    """
    row = {
        "rank": identity.rank,
        "host": identity.host,
        "step": getattr(error, "step", None),
        "message": one_line(error),
        "second_hand": is_second_hand(error),
        "waited": isinstance(error, StoodStill) and error.waits,
        "suspects": getattr(error, "ranks", None),
        "status": status,
        "time": time.time(),
    }
    path = folder / f"failure_{identity.rank}.json"
    with _reporting, suppress(OSError, ValueError):
        if not path.exists():
            write_json(path, row)
        return (folder / RESUME_FILE).exists()
    return False
