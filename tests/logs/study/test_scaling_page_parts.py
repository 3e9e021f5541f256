"""The page and the picture of a scaling study as they are written: columns, folded charts, notes and machines."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from logs.show.chart import Captioned, LineChart, Series
from logs.study import scaling_page
from logs.study.cells import ScalingRow
from logs.study.scaling_page import _expectations, _lead, _table, write_scaling_page
from tests.configs.test_scaling_study import EXPECTS, scaling_study
from tests.logs.study.rows import scaling_row


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Sequence[LineChart]]]:
    """Return the pictures that are handed over to be drawn."""
    drawn: list[tuple[Path, Sequence[LineChart]]] = []
    monkeypatch.setattr("logs.show.drawing.save_charts", lambda path, charts: drawn.append((path, charts)))
    return drawn


def _page(folder: Path, rows: Sequence[ScalingRow], **study: Any) -> str:
    (folder / "result_0.txt").touch()  # Rows of these tests have no folder of their own.
    write_scaling_page(scaling_study(**study), rows, folder, folder)
    return (folder / "grid.html").read_text(encoding="utf-8")


def test_a_table_has_each_number_below_its_heading_with_the_digits_that_it_deserves() -> None:
    row = scaling_row(
        1234.56, efficiency=0.98765, first_epoch_s=12.345, later_epoch_s=11.114, wall_s=60.06, cpu_s=119.94,
        busy_cores=2.0, server_busy_cores=0.126, peak_memory_bytes=2_345_600_000, top1=0.76543,
    )  # fmt: skip
    table = _table([row])
    heads, cells = (re.findall(f"<{tag}(?: [^>]*)?>(.*?)</{tag}>", table) for tag in ("th", "td"))
    assert dict(zip(heads, cells, strict=True)) == {
        "Network": "n", "Communication": "fast", "Data": "d", "Batch": "8", "Ranks": "2",
        "Basis": '<span class="badge plain">measured</span><small>1 run</small>', "Images/s": "1,234.6",
        "Efficiency": "0.988", "First epoch, s": "12.35", "Later epochs, s": "11.11", "Wall, s": "60.1",
        "CPU, s": "119.9", "Cores of ranks": "1.87", "Cores of servers": "0.13", "Memory, MB": "2,346",
        "Top-1 or AUC": "0.7654",
    }  # fmt: skip
    assert 'aria-label="Cells"' in table


@pytest.mark.usefixtures("undrawn", "pictures")
@pytest.mark.parametrize(("count", "is_folded"), [(6, False), (7, True)])
def test_more_than_six_charts_of_single_runs_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, is_folded: bool
) -> None:
    figures = [
        Captioned(f"Chart {number}.", LineChart("t", "x", [Series("s", 0, [(0, 1)])])) for number in range(count)
    ]
    monkeypatch.setattr(scaling_page, "course_figures", lambda *_: [("Courses", figures), ("Nothing", [])])
    page = _page(tmp_path, [scaling_row(1.0)])
    assert (
        f'<details class="more"><summary>{count} charts of the first run of each cell</summary>' in page
    ) == is_folded
    assert [f"Chart {number}." in page for number in range(count)] == [True] * count
    assert "Nothing" not in page


@pytest.mark.usefixtures("undrawn")
def test_the_picture_has_the_first_three_charts_of_images_per_second_under_their_captions(
    tmp_path: Path, pictures: list[tuple[Path, Sequence[LineChart]]]
) -> None:
    rows = [scaling_row(10.0 * ranks, network=name, ranks=ranks) for name in "dcba" for ranks in (1, 2)]
    _page(tmp_path, rows)
    ((path, charts),) = pictures
    assert path == tmp_path / "grid.svg"
    assert [chart.heading for chart in charts] == [f"Images/s: {name}, d, batch 8 a rank" for name in "dcb"]
    pictures.clear()
    _page(tmp_path, rows[:1])
    assert pictures == []


@pytest.mark.usefixtures("undrawn", "pictures")
def test_title_purpose_findings_and_notes_are_escaped_and_notes_are_paragraphs(tmp_path: Path) -> None:
    rows = [scaling_row(10.0, data="<d>"), scaling_row(5.0, data="<e>")]
    page = _page(tmp_path, rows, title="A <b>", purpose=" Why <i>? ", notes="One <u>.\n\n\n\nTwo.\n")
    assert "<title>A &lt;b&gt;</title>" in page
    assert "<h1>A &lt;b&gt;</h1>" in page
    assert '<p class="lead">Why &lt;i&gt;?</p>' in page
    assert re.findall("<li>(.*?)</li>", page) == [
        "&lt;e&gt; instead of &lt;d&gt; (fast, batch 8 a rank, 2 ranks): n runs at 50% of its images/s with &lt;d&gt;."
    ]
    after = page.partition('<section aria-labelledby="cells">')[2]
    assert [words.strip() for words in re.findall("<p>([^<]*)</p>", after)] == ["One &lt;u&gt;.", "Two."]
    assert '<h2 id="expectations">' not in page


@pytest.mark.usefixtures("undrawn", "pictures")
def test_batches_of_all_ranks_make_findings_and_figures_of_strong_scaling(tmp_path: Path) -> None:
    rows = [scaling_row(10.0, ranks=1, batch=96), scaling_row(19.0, ranks=2, batch=48)]
    page = _page(tmp_path, rows, global_batch=[96])
    assert "Strong scaling: batch 96 split over 2 ranks" in page
    assert "Images/s relative to the fewest ranks: n, d, batch 96 in all" in page


@pytest.mark.usefixtures("undrawn", "pictures")
def test_the_lead_names_the_machines_of_the_runs_and_the_page_its_expectations(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record = {"cpu": "A <CPU>", "usable_cores": 2}
    (tmp_path / "run" / "environment.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "run" / "result_0.txt").touch()
    page = _page(tmp_path, [scaling_row(1.0, folder="run")], expects=[EXPECTS])
    assert "made by <code>./run.sh sweep grid</code> on A &lt;CPU&gt;, 2 cores. Points are medians" in page
    assert "<strong>0 of 1</strong> expectations hold" in page
    assert "deep gains with batch 96 in place of batch 32" in page
    assert '<span class="badge plain">not measured</span>' in page


@pytest.mark.parametrize(("cores", "words"), [(0.0, "(10% if none ran twice)"), (0.5, "(200% if none ran twice)")])
def test_the_spread_that_is_assumed_of_single_runs_is_told(cores: float, words: str) -> None:
    text = _expectations(scaling_study(expects=[EXPECTS]), [scaling_row(1.0, other_busy_cores=cores)])
    assert words in text
    assert "the difference is 3% or more" in text
    assert re.findall('<th scope="col">(.*?)</th>', text) == ["Basis", "Where", "Images/s, relative", "As expected"]


def test_a_study_without_faults_tells_of_none(tmp_path: Path) -> None:
    lead = _lead(scaling_study(repeats=3), [scaling_row(1.0), scaling_row(2.0, repeat=1)], tmp_path)
    assert lead == (
        '<p class="lead">Tests</p><p class="lead"><strong>2 runs</strong>, 3 for each cell, made by '
        "<code>./run.sh sweep grid</code>. Points are medians of the repeats; the table also has the lowest and the "
        "highest value.</p>"
    )
