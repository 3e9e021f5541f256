"""A rank that stands still ends itself, with a stack of every thread; so does one whose launcher is gone.

Horovod over Gloo never notices a rank that hangs, and a launcher that was killed cannot end its ranks.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import time

__all__ = ["Watchdog", "die_with_parent"]

_PR_SET_PDEATHSIG = 1


class Watchdog:
    """End the process with status 1 when it was not called for ``timeout_s``; it watches from its first call on.

    The stacks go to stderr. The timer is a thread of the C library's, so it fires also while Python is stuck in a
    call into MXNet.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._armed = float("-inf")

    def __call__(self) -> None:
        """Tell that a step was made; cheap, since the timer is set anew only after a tenth of its time."""
        now = time.monotonic()
        if now - self._armed > self._timeout_s / 10:
            faulthandler.dump_traceback_later(self._timeout_s, exit=True)
            self._armed = now

    def rest(self) -> None:
        """Watch no longer."""
        faulthandler.cancel_dump_traceback_later()


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the process that started this one ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
