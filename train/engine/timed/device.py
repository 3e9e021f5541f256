"""What a rehearsed rank does in place of computing: waiting, inventing accuracies, and failing on purpose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from configs.blocks.rehearsal import Fault

__all__ = ["Course", "Device", "strike"]


class Device:
    """A device on which work takes its time and nothing happens.

    Work begins when the work before it has ended, however late the host asks for it, and the host waits for its end.
    A host that wakes up late thus does not delay the device.

    Args:
        factor: Seconds of waiting per second of the described device's work.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._free = 0.0

    def begin(self) -> float:
        """Return the moment at which new work begins: now, or when the device is free."""
        return max(self._free, time.monotonic())

    def work_until(self, begin: float, seconds: float) -> None:
        """Wait until the device has worked for ``seconds`` since the moment ``begin``."""
        self._free = begin + seconds * self._factor
        time.sleep(max(0.0, self._free - time.monotonic()))

    def work(self, seconds: float) -> None:
        """Wait until the device has worked for ``seconds`` more."""
        self.work_until(self.begin(), seconds)


class Course:
    """The invented accuracies of a run, as counts of images.

    Args:
        top1: Top-1 after each epoch.
    """

    def __init__(self, top1: Sequence[float]) -> None:
        self._top1, self._owed = top1, 0.0

    def next_count(self, num_valid: int, epoch: int) -> int:
        """Return the right answers among ``num_valid`` images after ``epoch``; fractions are kept for later."""
        self._owed += num_valid * self._top1[min(epoch, len(self._top1)) - 1]
        count = int(self._owed)
        self._owed -= count
        return count


def strike(fault: Fault) -> None:
    """Do to this process what a fault says."""
    if fault.kind == "error":
        raise RuntimeError(f"rehearsed error in step {fault.step} of rank {fault.rank}")
    number = {"kill": signal.SIGKILL, "silence": signal.SIGSTOP, "notice": signal.SIGTERM}[fault.kind]
    os.kill(os.getpid(), number)
