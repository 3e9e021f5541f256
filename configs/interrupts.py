"""Ctrl-C in a program that has started another one: who ends, in which order, and who says so.

Imports the standard library only.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AS_SIGTERM = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU)
"""Also what schedulers send before the end of a job: LSF SIGUSR2, Grid Engine SIGXCPU at a soft limit."""

ENDING = (signal.SIGTERM, signal.SIGUSR1, *AS_SIGTERM)
"""What ends a program from outside. Schedulers announce a time limit by SIGUSR1."""


def heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those that are not ignored, as SIGHUP is under nohup, and SIGQUIT in the background of a script."""
    return [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]


class ChildInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a program that this one had started, and that program has said so."""


@contextmanager
def interrupt_left_to_child(*, says_so: bool) -> Iterator[None]:
    """Let a program that the block starts, and waits for, end by itself after Ctrl-C, which the terminal sends to both.

    `subprocess.run` would kill it after a quarter of a second, and what it had started or half written would stay.
    `ENDING`, which only this process may get, are passed on: else the program would run on for hours without a parent.

    Args:
        says_so: Whether the program's words reach the user.

    Raises:
        SystemExit: After the block, if there was one of `ENDING`.
        KeyboardInterrupt: After the block, if Ctrl-C was pressed; `ChildInterrupted` if the program ``says_so``.
    """
    pressed: list[int] = []

    def pass_on(number: int, _: object) -> None:
        pressed.append(number)
        with suppress(OSError):  # It has ended.
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), number)

    before = {number: signal.signal(number, pass_on) for number in heeded(ENDING)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pressed and (last := pressed[-1]) != signal.SIGINT:
        raise SystemExit(128 + last)
    if pressed:
        raise ChildInterrupted if says_so else KeyboardInterrupt
