"""Handling of signals: a rank stops at once during start-up, and at the end of the next interval during training.

The handlers are installed before the framework is imported, which takes seconds: a signal during the import would
otherwise end the process without a message.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from configs.errors import STOPPED_STATUS

_POLITE = (signal.SIGTERM, signal.SIGUSR1)
"""Signals of a time limit or a preemption, sent by the scheduler or passed on by the job script."""


class Stopped(BaseException):
    """A signal ends this rank at once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.exit_status = STOPPED_STATUS if number in _POLITE else 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class RunStopped(Exception):
    """The run was told to stop, and its state is on the disk; the same command resumes the run."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped, state saved after step {step}")


class StopSignals:
    """Signal handlers of a rank. SIGINT raises `Stopped`; so do SIGTERM and SIGUSR1 until `wait_for_step` is called.

    Attributes:
        waits_for_step: Whether SIGTERM and SIGUSR1 wait for the end of an interval.
        came: Number of the last signal received, or None.
    """

    def __init__(self) -> None:
        self.waits_for_step = False
        self.came: int | None = None
        for number in (signal.SIGINT, *_POLITE):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # A launcher signals a rank and its process group, so the same notice may arrive twice.
        is_first, self.came = self.came is None, number
        if number not in _POLITE or (is_first and not self.waits_for_step):
            raise Stopped(number)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Raise `Stopped` in place of any error in the block, if a signal has arrived.

        C code turns the exception of a signal handler into an error of its own: pybind11, which DALI uses, raises an
        ImportError during an import.
        """
        try:
            yield
        except Exception as error:
            if self.came is None or self.waits_for_step:
                raise
            raise Stopped(self.came) from error

    def wait_for_step(self) -> None:
        """Let SIGTERM and SIGUSR1 wait from now on; the loop asks `told_to_stop`."""
        self.waits_for_step = True

    def rest(self) -> None:
        """Ignore SIGTERM and SIGUSR1 from now on, because the run is over and the process takes up to a second to end.

        Python removes its signal handlers before that second is over, so a signal would kill a rank that succeeded.
        """
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)

    def told_to_stop(self) -> bool:
        """Return whether a signal has arrived."""
        return self.came is not None
