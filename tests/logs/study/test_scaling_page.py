"""What the page of a scaling study says of its rows: how many ran, failed or were not run, and the table's numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from logs.study.scaling_page import _known_values, _lead, _lines, _spread, _table
from tests.configs.test_scaling_study import scaling_study
from tests.logs.study.rows import scaling_row


def test_the_lead_counts_what_ran_failed_and_was_not_run(tmp_path: Path) -> None:
    rows = [
        scaling_row(1.0),
        scaling_row(2.0, repeat=1),
        scaling_row(None, status="failed"),
        scaling_row(9.0, basis="predicted", ranks=4),
        scaling_row(None, status="skipped", note="no link"),
        scaling_row(None, status="skipped", note="no link", ranks=3),
        scaling_row(None, status="skipped", note="no GPU"),
    ]
    words = re.sub("<[^>]*>", "", _lead(scaling_study(repeats=2), rows, tmp_path))
    assert (
        "2 runs, 2 for each cell, made by ./run.sh sweep grid; 1 failed; 2 cells were not run: no link; 1 cell was "
        in words
    )
    assert "predicted by the simulator" in words
    assert "Other programs" not in words
    alone = _lead(scaling_study(), [scaling_row(1.0, other_busy_cores=0.5)], tmp_path)
    assert "failed" not in alone
    assert "predicted by" not in alone
    assert "Other programs used the machine" in alone


def test_a_line_of_the_table_has_medians_with_the_lowest_and_the_highest() -> None:
    rows = [
        scaling_row(
            rate, network="a<b", repeat=number, busy_cores=1.5, server_busy_cores=0.25, peak_memory_bytes=2_500_000
        )
        for number, rate in enumerate((1000.0, 1300.0, 1100.0))
    ]
    rows += [scaling_row(2000.0, network="a<b", basis="predicted"), scaling_row(None, status="failed")]
    columns = _known_values(rows)
    assert [head for head, _, _ in columns] == ["Images/s", "Cores of ranks", "Cores of servers", "Memory, MB"]
    measured, predicted = _lines(rows, columns)
    assert measured[:5] == ["a&lt;b", "fast", "d", "8", "2"]
    assert measured[5].endswith("<small>3 runs</small>")
    assert measured[6] == "1,100.0<small>1,000.0 to 1,300.0</small>"
    assert measured[7:] == [f"{text}<small>{text} to {text}</small>" for text in ("1.25", "0.25", "2")]
    named = [replace(row, framework="PyTorch") for row in rows]
    assert [line[:2] for line in _lines(named, columns)] == [["PyTorch", "a&lt;b"]] * 2
    assert ["Framework" in _table(each) for each in (rows, named)] == [False, True]
    assert predicted[5:] == ["<mark>predicted</mark>", "2,000.0", "\u2013", "\u2013", "\u2013"]


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "\u2013"), ([None], "\u2013"), ([None, 2.0], "2.00"), ([3.0, 1.0], "2.00<small>1.00 to 3.00</small>")],
)
def test_what_was_not_measured_is_a_dash(values: list[float | None], text: str) -> None:
    assert _spread(values, 2) == text
