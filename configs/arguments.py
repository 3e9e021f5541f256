"""Command lines: parsers that report a mistake in one line.

Imports only `configs.errors`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from configs.errors import UserError, nearest

__all__ = ["Parser"]


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

    def parse_args(self, arguments: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the parsed options.

        Args:
            arguments: The words of the command line. If None, `sys.argv` holds them.
            namespace: Object that takes the options. If None, a new one.

        Raises:
            UserError: The command line has a mistake; for an unknown option, the message has the nearest known one.
        """
        options, unknown = self.parse_known_args(arguments, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            hint = f"; {nearest(word, self._flags())}" if word.startswith("-") else ""
            self.error(f"{word!r} is not expected here{hint}")
        return options

    def _flags(self) -> list[str]:
        """Return the options of this parser and of the parsers of its verbs."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        verbs = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        for verb in verbs:
            for parser in verb.choices.values():
                flags += parser._flags()
        return flags
