"""The errors that a user can cause, and exit statuses of ranks that stopped or refused. Imports nothing of ours."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

STOPPED_STATUS = 75
"""Exit status of a run that was told to stop and can be resumed (sysexits: EX_TEMPFAIL). Schedulers requeue on it."""

REFUSED_STATUS = 2
"""Exit status of ranks that refused to begin, because the config, the data set or the number of ranks is wrong."""

EARLY_STATUS = 76
"""In place of 0, the status of a rank that ended before the run was over: any library can end a process with 0.

A rank whose parent sets `END_VARIABLE` to this number ends with it at the end of the run, and the parent swaps the two.
launch/supervise_rank.sh does so too.
"""

END_VARIABLE = "RANK_ENDS_WITH"

_LONG = 500
"""Characters of a key or a value in a message."""


class UserError(ValueError):
    """A mistake that the user can correct. The message is one line: what is wrong, what is allowed, what to do.

    The message of several mistakes in one file has a line for each. Entry points print the message without a traceback
    and exit with status 2, before a run starts.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Let one process raise what another has caught: subclasses take other arguments than the message."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigError(UserError):
    """A value in a recipe, a cluster file or a ``--set`` that cannot be used.

    Args:
        key: Dotted path of the key, for example ``optimizer.momentum``.
        got: The value as the user gave it.
        allowed: The accepted values, in words. If empty, the key itself is the mistake, and ``remedy`` says why.
        remedy: What to do; empty if ``allowed`` says enough.
    """

    def __init__(self, key: str, got: object, allowed: str, remedy: str = "") -> None:
        self.key, self.got, self.allowed, self.remedy = key, got, allowed, remedy
        shown = repr([*got] if isinstance(got, tuple) else got)
        parts = [f"got {_shortened(shown)}, allowed: {allowed}" if allowed or not remedy else "", remedy]
        super().__init__(f"{_shortened(key)}: {'; '.join(filter(None, parts))}")


def _shortened(text: str) -> str:
    """Return a text that fits into a message."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text):,} characters)"


class ConfigErrors(ConfigError):
    """Several mistakes in one file, of which the attributes describe the first."""

    def __init__(self, mistakes: Sequence[ConfigError]) -> None:
        first = mistakes[0]
        super().__init__(first.key, first.got, first.allowed, first.remedy)
        self.args = ("\n".join(map(str, mistakes)),)


def nearest(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a hint for a mistyped word: ``did you mean 'lars'?``, or all ``choices`` if none is as similar as that."""
    known = sorted(choices)
    return near(word, known, cutoff=cutoff) or f"choose one of {', '.join(known)}"


def near(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return such a hint for a message that has all ``choices`` already: empty if none is near."""
    known = {each.lower(): each for each in sorted(choices)}
    match = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"did you mean {known[match[0]]!r}?" if match else ""
