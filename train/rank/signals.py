"""What a rank does when it is told to stop: at once, or, once there is a state worth keeping, at the next interval.

Handlers stand before MXNet is imported, which takes seconds: a signal then would end the process without a word.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from configs.errors import STOPPED_STATUS

__all__ = ["RunStopped", "StopSignals", "Stopped"]

_POLITE = (signal.SIGTERM, signal.SIGUSR1)
"""Time limit and preemption: what schedulers send, themselves or as the job script passes it on."""


class Stopped(BaseException):
    """A signal ends this rank now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.exit_status = STOPPED_STATUS if number in _POLITE else 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class RunStopped(Exception):
    """The run was told to stop, and its state is safe: the same command goes on with it."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"told to stop, state kept after step {step}; the same command goes on from there")


class StopSignals:
    """Notes SIGTERM and SIGUSR1; SIGINT, and any of them before `wait_for_step`, raises `Stopped`."""

    def __init__(self) -> None:
        self.waits_for_step = False
        self.came: int | None = None
        for number in (signal.SIGINT, *_POLITE):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # Launchers signal a rank and its whole group, so that one notice may come twice.
        is_first, self.came = self.came is None, number
        if number not in _POLITE or (is_first and not self.waits_for_step):
            raise Stopped(number)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Raise `Stopped` for any error in the block once such a signal came.

        C code makes errors of its own of what a handler raises: in an import by pybind11, DALI's, an ImportError.
        """
        try:
            yield
        except Exception as error:
            if self.came is None or self.waits_for_step:
                raise
            raise Stopped(self.came) from error

    def wait_for_step(self) -> None:
        """From now on, let a polite signal wait: the loop asks `told_to_stop`."""
        self.waits_for_step = True

    def rest(self) -> None:
        """Ignore polite signals from now on: the run is over, and the process may take a second to end.

        Handlers of Python's own are gone before that second is: such a signal would then kill a rank that succeeded.
        """
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)

    def told_to_stop(self) -> bool:
        """Tell whether a polite signal came."""
        return self.came is not None
