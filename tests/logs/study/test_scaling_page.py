"""What the page of a scaling study says of its rows: how many ran, failed or were not run, and the table's numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.scaling_study import Expectation
from logs.study.expectations import compare
from logs.study.scaling_figures import cell_figures, course_figures
from logs.study.scaling_page import (
    _expectations,
    _judged,
    _known_values,
    _lead,
    _lines,
    _spread,
    _table,
    write_scaling_page,
)
from logs.usage import SAMPLES_FILE
from tests.configs.test_scaling_study import scaling_study
from tests.logs import samples
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


def test_expectations_stand_with_the_numbers_by_which_they_are_judged() -> None:
    expected = Expectation(
        axis="communication", base="fast", other="slow", effect="loses", network="wi<de", than=("thin",)
    )
    alone = expected.model_copy(update={"network": "thin", "than": ()})
    told = {"wi<de": (50.0, 60.0), "thin": (90.0, 98.0)}
    rows = [
        scaling_row(rate, network=network, repeat=number, communication=link, basis=basis)
        for basis in ("measured", "predicted")
        for network, rates in told.items()
        for link, values in (("fast", (100.0, 100.0)), ("slow", rates))
        for number, rate in enumerate(values)
    ]
    judged = [(each, compare(each, rows)) for each in (expected, alone)]
    table = "".join(_judged(each, comparisons) for each, comparisons in judged)
    lines = [re.sub("<[^>]*>", " ", line) for line in table.split("</tr>")]
    words = [" ".join(line.split()) for line in lines]
    assert words == [
        "wi&lt;de loses more than thin with slow in place of fast holds",
        "measured d, batch 8 a rank, 2 ranks wi&lt;de 0.55 (0.50 to 0.60), thin 0.94 (0.90 to 0.98) yes",
        "predicted d, batch 8 a rank, 2 ranks wi&lt;de 0.55, thin 0.94 yes",
        "thin loses with slow in place of fast within the noise of this machine",
        "measured d, batch 8 a rank, 2 ranks thin 0.94 (0.90 to 0.98) within the noise; about 17 repeats would tell",
        "predicted d, batch 8 a rank, 2 ranks thin 0.94 within the noise; about 17 repeats would tell",
        "",
    ]
    study: Any = SimpleNamespace(expects=[each for each, _ in judged])
    text = re.sub("<[^>]*>", "", _expectations(study, rows))
    assert text.startswith("1 of 2 expectations hold wherever they were measured.")
    assert "spread of the study's other cells (" in text


@pytest.mark.usefixtures("undrawn")
def test_a_page_has_the_sections_for_which_there_is_something_to_say(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result_0.txt").write_text(samples.mllog(samples.run_events()), encoding="utf-8")

    def sections(*rows: Any) -> list[str]:
        write_scaling_page(scaling_study(), rows, tmp_path, tmp_path)
        return re.findall("<h2[^>]*>([^<]*)</h2>", (tmp_path / "grid.html").read_text(encoding="utf-8"))

    alone = sections(scaling_row(100.0, folder="run"))
    assert ("Findings" in alone, "Kinds of data" in alone, "Cells" in alone) == (False, False, True)
    two = sections(*(scaling_row(rate, data=data, folder="run") for rate, data in ((100.0, "d"), (50.0, "other"))))
    assert ("Findings" in two, "Kinds of data" in two, "Frameworks" in two) == (True, True, False)


def test_charts_over_time_name_the_cells_that_they_are_of(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result_0.txt").write_text(samples.mllog(samples.run_events()), encoding="utf-8")
    load = {"busy_cores": 1.5, "machine_busy_cores": 1.6, "memory_bytes": 10**9}
    rows = [{"time": 1e9 + second, **load} for second in range(5)]
    (tmp_path / "run" / SAMPLES_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sections = dict(course_figures([scaling_row(100.0, folder="run")], tmp_path))
    for figures in sections.values():
        assert figures
        assert all(figure.caption.endswith(": n, d, batch 8 a rank") for figure in figures)


def test_memory_is_in_millions_of_bytes_notes_are_escaped_and_no_servers_have_no_column(tmp_path: Path) -> None:
    rows = [scaling_row(1.0, busy_cores=1.0, server_busy_cores=0.0, peak_memory_bytes=3_000_000_000)]
    columns = _known_values(rows)
    assert "Cores of servers" not in [head for head, _, _ in columns]
    (line,) = _lines(rows, columns)
    assert line[-1] == "3,000"
    assert "not run: no &lt;GPU&gt;" in _lead(
        scaling_study(), [*rows, scaling_row(None, status="skipped", note="no <GPU>")], tmp_path
    )


def test_only_the_first_repeat_of_a_cell_that_succeeded_is_followed(tmp_path: Path) -> None:
    samples.run_folder(tmp_path / "run")
    gone = [scaling_row(2.0, repeat=1, folder="gone"), scaling_row(None, status="failed", folder="gone")]
    figures = dict(course_figures([scaling_row(1.0, folder="run"), *gone], tmp_path))
    assert [len(each.chart.series) for each in figures["Loss and accuracy"]] == [1] * 4  # type: ignore[union-attr]


def test_the_ideal_of_strong_scaling_grows_from_the_fewest_ranks() -> None:
    rows = [scaling_row(100.0, batch=32, ranks=2), scaling_row(300.0, batch=8, ranks=8)]
    (figure,) = dict(cell_figures(rows, [64]))["Strong scaling"]
    points = {each.name: each.points for each in figure.chart.series}  # type: ignore[union-attr]
    assert points == {"fast": [(2.0, 1.0), (8.0, 3.0)], "ideal": [(2.0, 1.0), (8.0, 4.0)]}
