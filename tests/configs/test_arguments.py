"""Text for a terminal: colours only where they are wanted, and no control characters."""

from __future__ import annotations

import io

import pytest

from configs.arguments import painted, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_with_colours_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    assert painted("PASS", "good", Terminal()) == "\x1b[32mPASS\x1b[0m"
    assert painted("a", "plain", Terminal()) == "a"
    assert painted("PASS", "good", io.StringIO()) == "PASS"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_no_colours_where_they_are_not_wanted_or_not_there(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)
    assert painted("FAIL", "bad", Terminal()) == "FAIL"


def test_control_characters_become_a_space() -> None:
    assert printable("a\x00\x00\x1b[0m\tb  c") == "a [0m b  c"
