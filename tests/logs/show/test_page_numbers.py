"""The numbers and outcomes in a report's words: which runs count for the time, units, badges, links, names."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.read.record import Evaluation, RunRecord
from logs.show.page import _configuration, _row, render
from logs.show.reported_run import ReportedRun
from tests.logs import samples

pytestmark = pytest.mark.usefixtures("undrawn")


def _page(out: Path, *runs: Path) -> str:
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def _text(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_only_runs_that_reached_the_target_count_for_the_time_to_train(tmp_path: Path) -> None:
    # 8 epochs and two evaluations of 1 s.
    runs = [
        samples.run_folder(tmp_path / f"run{n}", n, epoch_s=seconds) for n, seconds in enumerate((10.0, 20.0, 100.0))
    ]
    runs.append(samples.run_folder(tmp_path / "quick", 9, epoch_s=1.0, status="aborted", best=0.5))
    (runs[-1] / "summary.json").write_text(
        json.dumps({"recipe": "digits", "status": "aborted", "failure": "stuck", "target": 0.9})
    )
    page = _page(tmp_path / "page.html", *runs)
    text = _text(page)
    assert "162.00 s to train: median of 3 runs that reached the target, out of 4;" in text
    assert "fastest 82.00 s, slowest 13.37 min" in text
    assert "olympic" not in text, "a submission has five runs"
    assert re.search(r'<span class="badge bad">aborted</span>', page)
    assert len(re.findall(r'<span class="badge good">success</span>', page)) == 3
    assert "target 0.9 " in text, "that of the summary comes before that of the log"
    assert "stuck" in text


def test_a_page_links_every_file_of_its_run_but_itself(tmp_path: Path) -> None:
    run = samples.run_folder(tmp_path / "run")
    for _ in range(2):
        page = _page(run / "report.html", run)
    links = re.findall(r'<a href="([^"]+)"', page)
    assert "result_0.txt" in links
    assert "config.yaml" in links
    assert "report.html" not in links
    # 4.0.0's log is read where both are there: it counts milliseconds, as 0.6.0's does not need to.
    (run / "result_0.mll.txt").write_text("nothing that anybody could read\n")
    assert "ran 82.00 s" in _text(_page(run / "report.html", run))


def test_a_folder_of_foreign_logs_is_one_run_a_log_and_a_run_folder_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "system"
    foreign.mkdir()
    for number in range(3):
        (foreign / f"result_{number}.txt").write_text(samples.mllog(samples.run_events(seed=number, org="Else")))
    own = samples.run_folder(tmp_path / "own")
    assert main(["report", str(foreign), str(own), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["submitter"] for row in found] == ["Else", "Else", "Else", "Anyone"]
    assert [row["seeds"] for row in found] == [[0], [1], [2], [1]]


def _made(name: str, settings: dict[str, Any], **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings)


def _cells(html: str) -> list[str]:
    return [
        re.sub("<small>", " ", re.sub("</?(?!small)[a-z][^>]*>", "", cell)) for cell in re.findall("<td.*?</td>", html)
    ]


def test_a_row_has_each_number_under_its_heading() -> None:
    run = _made(
        "a", {}, status="success", division="open", target=0.7, began_s=1.0, init_s=2.5, attempts=3,
        time_to_train_s=80.0, train_samples=1000, global_batch_size=640,
        evaluations=(Evaluation(8, 70.0, 0.76543, None),),
    )  # fmt: skip
    run.summary["images_per_s"] = 123.4
    html = _row(run, 0)
    heads = re.findall('data-head="([^"]*)"', html)
    cells = [cell.replace("</small>", "") for cell in _cells(html)]
    assert dict(zip(heads, cells, strict=True)) == {
        "Outcome": "success resumed, 3 attempts", "Time to train": "80.00 s", "Initialisation": "2.50 s", "Epochs": "8",
        "Accuracy": "0.7654 target 0.7", "Batch": "640", "Images/s": "100 123 without evaluations",
        "Log check": "\u2013",
    }  # fmt: skip
    once = _row(_made("b", {}, status="aborted", elapsed_s=5.0, benchmark="bert", began_s=1.0), 1)
    assert "resumed" not in once
    assert "benchmark bert" in once
    assert "ran 5.00 s" in once


def test_settings_that_differ_come_first_with_the_unusual_value_marked() -> None:
    runs = [_made(name, {"lr": lr, "same": 1}) for name, lr in (("a", 1), ("b", 2), ("c", 1))]
    runs.append(_made("d", {"lr": 1, "same": 1, "own": "x"}))
    html = _configuration(runs)
    assert html.startswith("<p>1 setting differs.</p>")
    assert re.findall("<mark>(.*?)</mark>", html) == ["2"]
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["lr", "own", "same"]
    assert re.findall("<summary>(.*?)</summary>", html) == [
        "1 setting that only some of the runs have", "1 setting that all runs share",
    ]  # fmt: skip
    assert _configuration(runs[:1]).count("<summary>2 settings</summary>") == 1
    assert "No setting differs" in _configuration([runs[0], runs[2]])
    assert "No setting differs" not in _configuration(runs[:1])
    assert _configuration([_made(name, {"k": 1}) for name in "ab"]).startswith("<p>No setting differs.</p>")
    assert _configuration([_made("e", {})]) == "<p>The logs contain no settings.</p>"
    both = [_made("a", {"x": 1, "y": 1}), _made("b", {"x": 2, "y": 2})]
    assert _configuration(both).startswith("<p>2 settings differ.</p>")


@pytest.mark.parametrize(("count", "title"), [(1, "r0"), (3, "r0, r1, r2"), (4, "r0, r1, r2 \u2026")])
def test_the_title_names_at_most_three_runs(count: int, title: str) -> None:
    page = render([_made(f"r{number}", {}) for number in range(count)], Path("page.html"))
    assert f"<title>{title}</title>" in page


def test_links_lead_to_files_of_any_name(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run #1")
    (folder / "a <b>&.txt").write_text("x")
    page = _page(tmp_path / "page.html", folder)
    assert '<a href="run%20%231/a%20%3Cb%3E%26.txt">run #1/a &lt;b&gt;&amp;.txt</a>' in page
