"""The signals that a launcher passes on to its ranks instead of ending by them, and those that end what it started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from configs.interrupts import ending_signals

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Signals on which ranks save their state and end. Ranks get SIGTERM in place of SIGINT, which ends them at once."""

STOP_FILE = "stop"
"""A file of the run folder that tells the ranks of horovodrun to save their state and end.

horovodrun passes SIGTERM on to ssh, which ends at once and with it the ranks of other hosts, and kills the ranks of its
own host after 5 s. So horovodrun gets no signal, and each rank's ``supervise_rank.sh`` looks for the file."""

_outer: list[Callable[[], int | None]] = []
"""What the block that holds the handlers yielded."""


@contextmanager
def forwarded_signals(at_interrupt: str = "") -> Iterator[Callable[[], int | None]]:
    """Record `STOP_SIGNALS` and `ending_signals` while the block runs, so that they do not end this process.

    Within another such block, the signals of the outer one count too, so that none is lost on the way to the ranks.

    SIGHUP, which a terminal sends when it closes, SIGQUIT (Ctrl with a backslash) and the rest count
    as SIGTERM: the ranks save their state and end. Under nohup SIGHUP stays ignored, and SIGQUIT in the background of a
    script. A second SIGINT counts as SIGKILL: the user wants the ranks to end at once.

    If a signal has arrived, this process is about to end, and signals that follow after the block are ignored: they
    would change the exit status, or kill Python while it ends.

    Args:
        at_interrupt: A line for the terminal at the first SIGINT.

    Yields:
        A function that returns the last signal that arrived, or None.
    """
    if _outer:
        yield _outer[0]
        return
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if number not in STOP_SIGNALS:
            number = signal.SIGTERM
        if number == signal.SIGINT and number in received:
            number = signal.SIGKILL
        elif number == signal.SIGINT and at_interrupt:
            with suppress(OSError):  # It may be closed, full or unread, and the signal may have interrupted a print.
                os.write(sys.stderr.fileno(), f"\n{at_interrupt}\n".encode())
        received.append(number)

    before = {number: signal.signal(number, record) for number in {*STOP_SIGNALS, *ending_signals()}}
    _outer.append(lambda: received[-1] if received else None)
    try:
        yield _outer[0]
    finally:
        _outer.clear()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if received else handler)


def signal_groups(processes: Iterable[subprocess.Popen[Any]], number: int) -> None:
    """Signal the whole process group of each process, so that nothing that it started is left behind.

    Args:
        processes: Processes that were started with a session of their own.
        number: The signal.
    """
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
