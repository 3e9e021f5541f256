"""Command lines: parsers that report a mistake in one line, and text for a terminal.

Imports only `configs.errors`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, NoReturn, TextIO

from configs.errors import UserError, nearest

__all__ = ["Parser", "Style", "has_colour", "painted", "printable"]


Style = Literal["plain", "strong", "good", "bad", "faint"]
"""What a text is to its reader: a heading is strong, PASS is good, FAIL and a failure are bad."""

_ALIKE = 0.7
"""How similar an option must be to be suggested; all options are somewhat alike, because they share two dashes."""

_CODES = {"strong": 1, "good": 32, "bad": 31, "faint": 2}


def has_colour(stream: TextIO) -> bool:
    """Return whether to write colours: the stream is a terminal that has them, and NO_COLOR is unset or empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def painted(text: str, style: Style, stream: TextIO) -> str:
    """Return ``text`` in the colour of its style if ``stream`` has colours, else ``text`` as it is."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style in _CODES and has_colour(stream) else text


def printable(text: str) -> str:
    """Return a text with a space for each run of control characters: a file of others must not steer the terminal."""
    parts = groupby(text, str.isprintable)
    return "".join("".join(letters) if is_printable else " " for is_printable, letters in parts)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `UserError` instead of printing its usage and exiting."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise the error that refuses the command line.

        Raises:
            UserError: Always, with ``message`` and where to find help.
        """
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, arguments: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the parsed options and no other word. For a verb, `argparse` calls this method of the verb's parser.

        Args:
            arguments: The words of the command line. If None, `sys.argv` holds them.
            namespace: Object that takes the options. If None, a new one.

        Raises:
            UserError: The command line has a mistake; for an unknown option, the message has the nearest of this verb.
        """
        options, unknown = super().parse_known_args(arguments, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            flags = [flag for action in self._actions for flag in action.option_strings]
            hint = f"; {nearest(word, flags, cutoff=_ALIKE)}" if word.startswith("-") else ""
            self.error(f"{word!r} is not expected here{hint}")
        return options, unknown
