"""Ctrl-C in a program that has started another one: who ends, in which order, and who says so.

Imports the standard library only.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class ChildInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a program that this one had started, and that program has said so."""


@contextmanager
def interrupt_left_to_child(*, says_so: bool) -> Iterator[None]:
    """Let a program that the block starts, and waits for, end by itself after Ctrl-C, which the terminal sends to both.

    `subprocess.run` would kill it after a quarter of a second, and what it had started or half written would stay.
    SIGTERM, which only this process gets, is passed on: else the program would run on for hours without a parent.

    Args:
        says_so: Whether the program's words reach the user.

    Raises:
        SystemExit: After the block, if there was a SIGTERM.
        KeyboardInterrupt: After the block, if Ctrl-C was pressed; `ChildInterrupted` if the program ``says_so``.
    """
    pressed: list[int] = []

    def pass_on(number: int, _: object) -> None:
        pressed.append(number)
        with suppress(OSError):  # It has ended.
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), number)

    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    before_term = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, before_term)
    if signal.SIGTERM in pressed:
        raise SystemExit(128 + signal.SIGTERM)
    if pressed:
        raise ChildInterrupted if says_so else KeyboardInterrupt
