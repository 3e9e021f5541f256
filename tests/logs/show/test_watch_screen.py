"""`watch` on a terminal: what a screen of some width shows in the end."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from logs.show import watch as watching
from logs.show.watch import watch
from tests.logs import samples


class Screen(io.StringIO):
    """A terminal that wraps at its width, and obeys "up", "clear below" and carriage returns."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        rows, at = [""], 0
        for up, text in re.findall(r"(?:\x1b\[(\d+)A\r\x1b\[J)?([^\x1b]*)", self.getvalue()):
            at = max(at - int(up or 0), 0)
            del rows[at + (0 if up else len(rows)) :]
            parts = [
                line[begin : begin + self.columns]
                for line in text.split("\n")[:-1]
                for begin in range(0, max(len(line), 1), self.columns)
            ]
            rows = [*rows[:at], *parts, ""] if text else rows
            at = len(rows) - 1
        return rows


@pytest.mark.parametrize("columns", [200, 80, 40])
def test_an_update_overwrites_the_one_before_at_any_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    folder = samples.run_folder(tmp_path / "run")
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (folder / "summary.json").write_bytes(summary)

    monkeypatch.setattr(watching, "_size", lambda _: (columns, 24))
    screen = Screen(columns)
    assert watch(folder, screen, every_s=0.5, once=False, sleep=sleep) == 0
    words = " ".join(" ".join(screen.rows()).split())
    assert screen.getvalue().count("images/s") == 4
    assert words.count("images/s") == words.count("digits: ") == words.count("ended: success") == 1
    assert all(len(row) < columns for row in screen.rows())
    assert "left until" not in words
    assert " s ago" not in words


def test_a_terminal_that_does_not_know_its_size_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watching._size(io.StringIO()) == (80, 24)
    monkeypatch.setattr(Screen, "fileno", lambda _: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: (0, 0))
    assert watching._size(Screen(80)) == (80, 24)
