"""The watchdog ends a rank that makes no progress and reports where the rank stood; a dead launcher ends its ranks.

Horovod over Gloo never notices a rank that hangs, and a launcher that was killed cannot end its ranks.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from configs.load import ROOT
from train.rank.peers import LOOK_EVERY_S, Peers

_PR_SET_PDEATHSIG = 1
_BACKSTOP_S = 5.0
"""Head start of the watching thread over the kernel, which ends a process whose Python is stuck in a call."""

_STACKS_S = 2.0
"""Time between the stacks of such a process and its end."""

_LAST_WORDS_S = 2.0
"""Time for the other waiting ranks to report too, because launchers end all ranks when the first one ends."""

_ORPHAN_S = 6.0
"""Time for an orphaned rank to save its state and end, the same as in launch/supervise_rank.sh."""

_WAITS = ("mxnet", "horovod")
"""Packages in whose calls a rank waits for other ranks; a rank elsewhere is the one that others wait for."""

_MEETING_PLACES = ("train/comm/", "train/compose.py", "train/engine/torch/engine.py")
"""Modules of this program in which a rank waits for other ranks: ``compose`` for the thread that connects the rank to
them, PyTorch's engine for sums on a GPU."""


class StoodStill(RuntimeError):
    """A rank made no progress. ``step`` is its last queued step, ``waits`` whether it waited for other ranks."""

    def __init__(self, message: str, step: int | None, *, waits: bool) -> None:
        self.step, self.waits = step, waits
        super().__init__(message)


class Watchdog:
    """End the process with status 1 if the watchdog is not called for ``timeout_s``; watching starts at once.

    Args:
        timeout_s: Longest time without progress.
        report: Called with the facts, before the stacks of all threads are printed and the process ends.
    """

    def __init__(self, timeout_s: float, report: Callable[[StoodStill], object]) -> None:
        self._timeout_s, self._report = timeout_s, report
        self._last = self._stepped = time.monotonic()
        self._armed = float("-inf")
        self._step: int | None = None
        self._peers: Peers | None = None
        self._rested = threading.Event()
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        self()

    def __call__(self, step: int | None = None) -> None:
        """Record progress, and ``step`` if a step was queued; cheap, because the kernel's timer is seldom reset."""
        now = time.monotonic()
        if self._peers is not None:
            if step is None:
                self._peers.paused()
            else:
                self._peers.stepped(now - self._last)
        self._last = now
        if step is not None:
            self._step, self._stepped = step, now
        if now - self._armed > self._timeout_s / 10:
            # The timer is reset only every tenth of the timeout, so it gets that much more time.
            end_within(self._timeout_s * 1.1 + _BACKSTOP_S)
            self._armed = now

    def expect(self, timeout_s: float) -> None:
        """Set another timeout from now on."""
        self._timeout_s, self._armed = timeout_s, float("-inf")
        self()

    def follow(self, peers: Peers) -> None:
        """Name ranks that do not respond, and end the run long before the timeout if they never do."""
        self._peers, self._stepped = peers, time.monotonic()

    def rest(self) -> None:
        """End watching."""
        self._rested.set()
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _watch(self) -> None:
        seen = resumed = time.monotonic()
        while not self._rested.wait(min(LOOK_EVERY_S, self._timeout_s / 10)):
            now = time.monotonic()
            gap_s, seen = now - seen, now
            if gap_s > 4 * LOOK_EVERY_S:
                # This process was frozen too, or found no core: it cannot tell what the others did meanwhile.
                resumed = now
            stalled_s = now - max(self._stepped, resumed)
            is_late = max(gap_s, now - self._last) > self._timeout_s
            if is_late or (self._peers is not None and self._peers.look(stalled_s, self._waits)):
                where, waits = _describe(sys._current_frames().get(self._watched))
                message = f"no progress for {self._timeout_s if is_late else stalled_s:.3g} s, in {where}"
                if gap_s > self._timeout_s / 2:
                    # The process was frozen and has just been resumed; the other ranks have given up waiting for it.
                    message, waits = f"was frozen for {gap_s:.0f} s, in {where}", False
                # The end comes before the words: the report may wait for a disk, and the stacks for a reader.
                end_within(_BACKSTOP_S)
                self._report(StoodStill(message, self._step, waits=waits))
                faulthandler.dump_traceback(all_threads=True)
                time.sleep(_LAST_WORDS_S if waits else 0)
                os._exit(1)
        if self._peers is not None:
            self._peers.rest()

    def _waits(self) -> bool:
        return _describe(sys._current_frames().get(self._watched))[1]


def end_within(seconds: float) -> None:
    """Print the stacks of all threads after ``seconds``, and end this process soon after them, by SIGALRM.

    The kernel ends the process, whatever Python, a disk or the reader of the stacks does. A process that was frozen
    when its time was over ends as soon as it goes on.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds + _STACKS_S)
    with suppress(RuntimeError):  # The stacks need a thread, and a limit on threads may be what ends the process.
        faulthandler.dump_traceback_later(seconds)


def _describe(frame: FrameType | None) -> tuple[str, bool]:
    """Return the place in this program at which a stack stands, and whether it waits there for other ranks."""
    waits = False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{ROOT}{os.sep}") and "site-packages" not in path:
            place = os.path.relpath(path, ROOT)
            waits = waits or place.startswith(_MEETING_PLACES)
            return f"{place}:{frame.f_lineno} ({frame.f_code.co_name})", waits
        waits = waits or any(f"/{package}/" in path for package in _WAITS)
        frame = frame.f_back
    return "a place that is not known", waits


def die_with_parent() -> None:
    """End this process when its parent ends: by SIGTERM at once, with status 1 after ``_ORPHAN_S`` (Linux).

    A rank whose peers are gone waits in a collective, where it cannot heed SIGTERM, and nobody is left to kill it.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_end_after, args=(parent,), name="parent", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_ORPHAN_S)
    os._exit(1)
