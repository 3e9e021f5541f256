"""Ctrl-C in a program that has started another one: who ends, in which order, and who says so.

Imports the standard library only.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU)
"""Also what schedulers send before the end of a job: LSF SIGUSR2, Grid Engine SIGXCPU at a soft limit."""


def ending_signals() -> list[signal.Signals]:
    """Return what ends a program from outside, unless it is ignored, as SIGHUP under nohup and SIGQUIT in a script."""
    return [each for each in _ENDING if signal.getsignal(each) != signal.SIG_IGN]


def ended_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line of a program that gets SIGTERM from the kernel when whoever starts it is killed."""
    return [*(["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []), *command]


class ChildInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a program that this one had started, and that program has said so."""


@contextmanager
def interrupt_left_to_child(*, says_so: bool) -> Iterator[None]:
    """Let a program that the block starts, and waits for, end by itself after Ctrl-C, which the terminal sends to both.

    `subprocess.run` would kill it after a quarter of a second, and what it had started or half written would stay.
    `ending_signals`, which only this process may get, are passed on: else the program would run on without a parent.

    Args:
        says_so: Whether the program's words reach the user.

    Raises:
        SystemExit: After the block, if there was one of `ending_signals`.
        KeyboardInterrupt: After the block, if Ctrl-C was pressed; `ChildInterrupted` if the program ``says_so``.
    """
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        pressed.append(number)
        if number == signal.SIGINT:
            return
        with suppress(OSError):  # It has ended.
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pressed and (last := pressed[-1]) != signal.SIGINT:
        raise SystemExit(128 + last)
    if pressed:
        raise ChildInterrupted if says_so else KeyboardInterrupt


def run_child(command: Sequence[str], **options: Any) -> int:
    """Run a program whose words reach the user, and return its status; see `interrupt_left_to_child`."""
    with interrupt_left_to_child(says_so=True):
        return subprocess.run(ended_with_parent(command), check=False, **options).returncode
