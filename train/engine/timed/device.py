"""What a rehearsed rank does in place of computing: waiting, and failing on purpose."""

import os
import random
import resource
import signal
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

from configs.blocks.rehearsal import SLOWER, Fault

_LATE, _OFTEN = 10.0, 0.02
"""By how many deviations a late wait is longer, and which share of the waits is late."""

_SIGNALS = {"kill": signal.SIGKILL, "silence": signal.SIGSTOP, "notice": signal.SIGTERM}


class Device:
    """A device on which work takes its time and nothing happens.

    Work begins when the host asks for it, or when the work before it has ended. A host that waits for the end of work
    and wakes up late, on a busy machine, delays what it asks for next; work that is only queued is not delayed.

    Attributes:
        free: When the work that was asked for ends, in seconds of `time.monotonic`.

    Args:
        factor: Seconds of waiting per second of the described device's work.
        noise: Standard deviation of a wait, see `configs.blocks.rehearsal.Rehearsal`.
    """

    def __init__(self, factor: float, noise: float = 0.0) -> None:
        self._random, self._noise = random.Random(), noise
        self._factor = factor * (1 + noise / 2 * self._random.gauss(0, 1))
        self._now = 1.0
        self.free = 0.0

    def slow_down(self, factor: float) -> None:
        """Take ``factor`` times longer from now on."""
        self._factor *= factor

    def begin(self) -> float:
        """Return the moment at which new work begins: now, or when the device is free."""
        if self._noise:
            late = _LATE if self._random.random() < _OFTEN else 0.0
            self._now = max(0.0, 1 + self._noise * (self._random.gauss(0, 1) + late))
        return max(self.free, time.monotonic())

    def queue(self, begin: float, seconds: float) -> None:
        """Let the device work for ``seconds`` since the moment ``begin``, and return at once."""
        self.free = begin + seconds * self._factor * self._now

    def wait(self) -> None:
        """Wait until the device is free."""
        time.sleep(max(0.0, self.free - time.monotonic()))

    def work_until(self, begin: float, seconds: float) -> None:
        """Wait until the device has worked for ``seconds`` since the moment ``begin``."""
        self.queue(begin, seconds)
        self.wait()

    def work(self, seconds: float) -> None:
        """Wait until the device has worked for ``seconds`` more."""
        self.work_until(self.begin(), seconds)


def strike(fault: Fault, device: Device) -> None:
    """Do to this process, or to its device, what a fault says."""
    if fault.kind == "error":
        raise RuntimeError(f"rehearsed error in step {fault.step} of rank {fault.rank}")
    if fault.kind == "slow":
        device.slow_down(SLOWER)
    elif fault.kind == "link":
        _break_connections()
    elif fault.kind == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), _SIGNALS[fault.kind])


def _break_connections() -> None:
    """Break every TCP connection of this process, as a lost link does."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # The descriptor of the listing is closed by now.
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.getpeername()  # raises for a listening socket: Gloo ends a process that loses one
                        connection.shutdown(socket.SHUT_RDWR)
