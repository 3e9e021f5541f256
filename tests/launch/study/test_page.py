"""The page of a scaling study as it is read: what ran, figures, differences, the table of cells, and the notes."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.study.page import write_page
from launch.study.rows import ScalingRow
from tests.configs.studies import scaling_study
from tests.launch.study.rows import scaling_row
from tests.logs import samples

Page = Callable[..., list[str]]


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """Return a function that writes the page of rows and returns its lines without tags and drawings."""
    (tmp_path / "result_0.txt").touch()  # Rows of these tests have no folder of their own.

    def write(rows: Sequence[ScalingRow], **study: Any) -> list[str]:
        write_page(scaling_study(**study), rows, tmp_path, tmp_path)
        body = (tmp_path / "grid.html").read_text(encoding="utf-8").partition("</style>")[2]
        lines = re.sub(r"(?s)<svg.*?</svg>|\s+", " ", body)
        lines = re.sub(r"<small>([^<]*)</small>", r" [\1]", lines)
        lines = re.sub(r"(?=<h2)|</(p|tr|h1|h2)>", "\n", re.sub(r"</t[dh]>\s*(?=<t[dh])", " | ", lines))
        return [" ".join(line.split()) for line in re.sub("<[^>]*>", "", lines).splitlines() if line.strip()]

    return write


def test_the_lead_counts_what_ran_failed_and_was_not_run(page: Page) -> None:
    ran = [scaling_row(1.0, other_busy_cores=0.5), scaling_row(2.0, repeat=1, other_busy_cores=0.125)]
    rows = [
        *ran,
        scaling_row(None, status="failed"),
        scaling_row(3.0, basis="predicted"),
        scaling_row(None, status="skipped", note="no <link>"),
        scaling_row(None, status="skipped", note="no <link>", ranks=3),
        scaling_row(None, status="skipped", note="no GPU"),
    ]
    title, purpose, lead, *_ = page(rows, repeats=2, title="A <b>", purpose=" Why <i>? ")
    assert (title, purpose) == ("A &lt;b&gt;", "Why &lt;i&gt;?")
    for words in (
        "2 runs, 2 for each cell, made by ./run.sh sweep grid; 1 failed; 2 cells were not run: no &lt;link&gt;; 1 cell "
        "was not run: no GPU. ",
        "Hollow points on dotted lines were predicted by the simulator",
        "Other programs kept 0.31 cores of the machine busy during the runs, up to 0.50",
    ):
        assert words in lead
    lead = page([scaling_row(1.0)], repeats=3)[2]
    assert lead.startswith("1 runs, 3 for each cell, made by ./run.sh sweep grid. Points are medians of the repeats")
    assert "predicted" not in lead
    assert "Other programs" not in lead


def test_a_table_has_each_number_below_its_heading_with_the_digits_that_it_deserves(page: Page) -> None:
    row = scaling_row(
        1234.56, efficiency=0.98765, first_epoch_s=12.345, later_epoch_s=11.114, wall_s=60.06, cpu_s=119.94,
        busy_cores=2.0, server_busy_cores=0.126, peak_memory_bytes=2_345_600_000, top1=0.76543, basis="predicted",
    )  # fmt: skip
    *_, heads, cells = page([row])
    assert dict(zip(heads.split(" | "), cells.split(" | "), strict=True)) == {
        "Network": "n", "Communication": "fast", "Data": "d", "Batch": "8", "Ranks": "2", "Basis": "predicted",
        "Images/s": "1,234.6", "Efficiency": "0.988", "First epoch, s": "12.35", "Later epochs, s": "11.11",
        "Wall, s": "60.1", "CPU, s": "119.9", "Cores of ranks": "1.87", "Cores of servers": "0.13",
        "Memory, MB": "2,346", "Top-1 or AUC": "0.7654",
    }  # fmt: skip


def test_a_line_of_the_table_has_medians_with_the_lowest_and_the_highest_and_notes_follow(page: Page) -> None:
    rows = [
        scaling_row(rate, network="a<b", framework="X", repeat=number, wall_s=wall_s, server_busy_cores=0.0)
        for number, (rate, wall_s) in enumerate(((1000.0, None), (1300.0, 2.0), (1100.0, None)))
    ]
    rows += [scaling_row(2000.0, network="a<b", basis="predicted"), scaling_row(None, status="failed")]
    assert page(rows, notes="One <u>.\n\n\n\nTwo.\n")[3:] == [
        "Cells",
        "Framework | Network | Communication | Data | Batch | Ranks | Basis | Images/s | Efficiency | Wall, s",
        "X | a&lt;b | fast | d | 8 | 2 | measured [3 runs] | 1,100.0 [1,000.0 to 1,300.0] | 1.000 [0.909 to 1.182] | "
        "2.0",
        "| a&lt;b | fast | d | 8 | 2 | predicted | 2,000.0 | \u2013 | \u2013",
        "One &lt;u&gt;.",
        "Two.",
    ]
    assert "measured [1 run]" in page(rows[:1])[-1]


def test_differences_have_the_lowest_and_the_highest_ratio(page: Page) -> None:
    rates = (("fast", 0, 100.0), ("fast", 1, 100.0), ("s<ow", 0, 50.0), ("s<ow", 1, 60.0))
    rows = [scaling_row(rate, repeat=number, communication=link) for link, number, rate in rates]
    lines = page(rows)
    assert lines[3] == "Differences"
    assert lines[5:7] == [
        "Difference | Images/s | Where",
        "communication s&lt;ow over fast | 0.55 [0.50 to 0.60] | n, d, batch 8 a rank, 2 ranks",
    ]
    assert "Differences" not in page(rows[:2])


@pytest.mark.parametrize(
    ("cores", "is_told"), [([0.1, 0.5, 1.25], True), ([None, 0.11], True), ([0.1, 0.05, 5.0], False)]
)
def test_other_programs_count_from_a_tenth_of_a_core_on_in_the_median_run(
    cores: list[float | None], is_told: bool, page: Page
) -> None:
    lead = page([scaling_row(1.0, other_busy_cores=each) for each in cores])[2]
    assert ("Other programs kept" in lead) is is_told


@pytest.mark.medium
def test_a_page_has_the_sections_for_which_there_is_something_to_show(page: Page, tmp_path: Path) -> None:
    rows = [scaling_row(10.0 * ranks, network=name, ranks=ranks) for name in "dcba" for ranks in (1, 2)]
    titles = {"Throughput", "Efficiency", "Strong scaling", "Cells"}

    def sections(rows: Sequence[ScalingRow], **study: Any) -> list[str]:
        return [line for line in page(rows, **study) if line in titles]

    assert sections(rows) == ["Throughput", "Efficiency", "Cells"]
    picture = (tmp_path / "grid.svg").read_text(encoding="utf-8")
    assert re.findall(r"Images/s: (\w), d, batch 8 a rank", picture) == ["d", "c", "b"], "the first three charts"
    (tmp_path / "grid.svg").unlink()
    assert sections([scaling_row(1.0), scaling_row(2.0, data="e")]) == ["Cells"]
    assert not (tmp_path / "grid.svg").exists()
    split = [scaling_row(10.0, ranks=1, batch=96), scaling_row(19.0, ranks=2, batch=48)]
    assert "Strong scaling" in sections(split, global_batch=[96])
    assert "Strong scaling" not in sections(split)
    for name in "ab":
        samples.run_folder(tmp_path / name)
    followed = [scaling_row(1.0, network=name, folder=name) for name in "ab"]
    assert any("charts of the first run of each cell" in line for line in page(followed)), "folded"


def test_the_lead_names_each_kind_of_machine_once(page: Page, tmp_path: Path) -> None:
    for name, text in {
        "a": '{"cpu": "EPYC", "usable_cores": 2, "cores": 4, "gpus": null}',
        "b": '{"cpu": "EPYC", "usable_cores": 2, "cores": 8}',
        "c": json.dumps({"cpu": "<Xeon>", "usable_cores": 8, "gpus": [{"name": "V100"}, {"name": "A100"}, {}]}),
        "d": "{}",
        "broken": "{",
        "predicted": '{"cpu": "None of ours"}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "environment.json").write_text(text, encoding="utf-8")
    rows = [scaling_row(1.0, repeat=1, folder=name) for name in ("a", "b", "c", "d", "broken", "none", "")]
    lead = page([*rows, scaling_row(1.0, basis="predicted", folder="predicted")])[2]
    assert "sweep grid on EPYC, 2 cores on &lt;Xeon&gt;, 8 cores, 1 V100, 1 A100. Points" in lead
