"""`watch` on a terminal: what a screen of some width shows in the end."""

import io
import os
import re
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from configs.load import load_recipe
from logs.__main__ import _pause_s
from logs.show import watch as watching
from logs.show.watch import watch
from tests.logs import samples


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


class Screen(io.StringIO):
    """A terminal that wraps at its width, and obeys "up", "clear below", carriage returns and colours."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        rows, at = [""], 0
        for up, text in re.findall(r"(?:\x1b\[(\d+)A\r\x1b\[J)?([^\x1b]*)", _plain(self.getvalue())):
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
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen(columns)
    assert watch(folder, screen, every_s=0.5, once=False, sleep=sleep) == 0
    words = " ".join(" ".join(screen.rows()).split())
    assert screen.getvalue().count("images/s") == 4
    assert words.count("images/s") == words.count("digits: ") == words.count("ended: success") == 1
    assert all(len(row) < columns for row in screen.rows())
    assert "\x1b[32mended: success\x1b[0m\n" in screen.getvalue()
    assert "left until" not in words
    assert " s ago" not in words


def test_a_terminal_that_does_not_know_its_size_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watching._size(io.StringIO()) == (80, 24)
    monkeypatch.setattr(Screen, "fileno", lambda _: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: (0, 0))
    assert watching._size(Screen(80)) == (80, 24)


@pytest.mark.parametrize("text", ["0.09", "3601", "nan", "inf", "soon", "-1"])
def test_the_time_between_updates_has_bounds(text: str) -> None:
    assert [_pause_s(each) for each in ("0.1", "2", "3600")] == [0.1, 2, 3600]
    with pytest.raises(ArgumentTypeError, match=rf"got {text}, allowed: 0.1 to 3600 seconds"):
        _pause_s(text)


@pytest.mark.parametrize(("told", "kept"), [((10, 1), (20, 2)), ((132, 50), (132, 50)), ((0, 7), (80, 7))])
def test_a_terminal_has_at_least_20_columns_and_2_rows(
    monkeypatch: pytest.MonkeyPatch, told: tuple[int, int], kept: tuple[int, int]
) -> None:
    monkeypatch.setattr(Screen, "fileno", lambda _: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: told)
    assert watching._size(Screen(80)) == kept


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0m00s"), (59.4, "0m59s"), (59.6, "1m00s"), (3599, "59m59s"), (3600, "1h00m"), (7384, "2h03m")],
)
def test_durations_are_in_minutes_and_from_an_hour_on_in_hours(seconds: float, words: str) -> None:
    assert watching._duration(seconds) == words


@pytest.mark.parametrize(
    ("share", "full"), [(-0.5, 0), (0.0, 0), (0.024, 0), (0.026, 1), (0.5, 10), (1.0, 20), (2.0, 20)]
)
def test_a_bar_has_twenty_places(share: float, full: int) -> None:
    assert watching._bar(share) == "[" + "#" * full + "." * (20 - full) + "]"


def test_a_step_line_counts_from_one_and_unknown_shares_are_called_so() -> None:
    recipe = load_recipe("digits", ["run.epochs=12"])
    row = {"step": 149, "images_per_s": 1234.6, "loss": 0.123456, "lr": float("nan"), "time": 90.0}
    lines = [text for text, _ in watching.describe_progress(recipe, 300, {"interval": row}, now=95.4)]
    assert lines[0] == (
        "digits: [##########..........] step 150 of 300, epoch 8.01 of at most 12; last metrics 5 s ago"
    )
    assert lines[1] == (
        "  1235 images/s, loss 0.1235, learning rate not finite, waiting for input unknown, "
        "exposed communication unknown"
    )
    assert lines[2] == "  last evaluation: none yet"
    assert lines[3] == "  at most 0m04s left until the last epoch ends"
    assert len(watching.describe_progress(recipe, 300, {"interval": row}, now=None)) == 3


@pytest.mark.parametrize(("rows", "kept"), [(2, 1), (4, 3), (6, 5), (7, 5)])
def test_an_update_leaves_the_last_row_of_the_screen_to_the_cursor(
    monkeypatch: pytest.MonkeyPatch, rows: int, kept: int
) -> None:
    monkeypatch.setattr(watching, "_size", lambda _: (20, rows))
    screen = Screen(20)
    lines: list[watching.Line] = [(f"line {number}", "plain") for number in range(5)]
    shown = watching._redraw(screen, [], lines)
    assert shown == lines[:kept]
    assert screen.getvalue() == "".join(f"{text}\n" for text, _ in lines[:kept])
    before: list[watching.Line] = [("x" * 21, "plain"), ("", "plain")]
    watching._redraw(screen, before, lines[:1])
    assert screen.getvalue().endswith(f"\x1b[{min(3, rows - 1)}A\r\x1b[Jline 0\n")


def test_a_screen_has_at_least_twenty_columns_and_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(80)
    monkeypatch.setattr(screen, "fileno", lambda: 0)
    for told, used in (((0, 0), (80, 24)), ((19, 1), (20, 2)), ((21, 3), (21, 3))):
        monkeypatch.setattr("os.get_terminal_size", lambda _, told=told: os.terminal_size(told))
        assert watching._size(screen) == used
    monkeypatch.undo()
    assert watching._size(Screen(80)) == (80, 24)
