"""Ctrl-C in a program that has started another one: who ends, in which order, and who says so.

Imports the standard library only.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class ChildInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a program that this one had started, and that program has said so."""


@contextmanager
def interrupt_left_to_child(*, says_so: bool) -> Iterator[None]:
    """Let a program that the block starts, and waits for, end by itself after Ctrl-C, which the terminal sends to both.

    `subprocess.run` would kill it after a quarter of a second, and what it had started or half written would stay.

    Args:
        says_so: Whether the program's words reach the user.

    Raises:
        KeyboardInterrupt: After the block, if Ctrl-C was pressed; `ChildInterrupted` if the program ``says_so``.
    """
    pressed: list[int] = []

    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise ChildInterrupted if says_so else KeyboardInterrupt
