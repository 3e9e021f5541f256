"""Colours of a terminal: whether to write them, and the text of a line with its colour.

Imports nothing of ours.
"""

from __future__ import annotations

import os
from typing import Literal, TextIO

__all__ = ["Style", "has_colour", "painted"]

Style = Literal["plain", "strong", "good", "bad", "faint"]
"""What a text is to its reader: a heading is strong, PASS is good, FAIL and a failure are bad."""

_CODES = {"strong": 1, "good": 32, "bad": 31, "faint": 2}


def has_colour(stream: TextIO) -> bool:
    """Return whether to write colours: the stream is a terminal that has them, and NO_COLOR is unset or empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def painted(text: str, style: Style, stream: TextIO) -> str:
    """Return ``text`` in the colour of its style if ``stream`` has colours, else ``text`` as it is."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style in _CODES and has_colour(stream) else text
