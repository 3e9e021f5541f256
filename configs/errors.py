"""The errors a user can cause, and what a stopped run ends with. Imports nothing of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["STOPPED_STATUS", "ConfigError", "UserError", "nearest"]

STOPPED_STATUS = 75
"""Exit status of a run that was told to stop and can go on (sysexits: EX_TEMPFAIL): schedulers requeue on it."""


class UserError(ValueError):
    """A mistake that the user can mend: its text is one line that says what, what is allowed and what to do.

    Entry points print it and exit with status 2, before a run; it never carries a traceback to a user.
    """


class ConfigError(UserError):
    """A value in a recipe, a cluster file or a ``--set`` that cannot be used.

    Args:
        key: Dotted path of the key, for example ``optimizer.momentum``.
        got: The value as it was given.
        allowed: What would be accepted, in words.
        remedy: What to do about it; may be empty when ``allowed`` says it all.
    """

    def __init__(self, key: str, got: object, allowed: str, remedy: str = "") -> None:
        self.key, self.got, self.allowed, self.remedy = key, got, allowed, remedy
        text = f"{key}: got {got!r}, allowed: {allowed}"
        super().__init__(f"{text}; {remedy}" if remedy else text)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Say which of ``choices`` was probably meant, or list them all: ``did you mean 'lars'?``."""
    known = sorted(choices)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {match[0]!r}?" if match else f"choose one of {', '.join(known)}"
