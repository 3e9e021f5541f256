"""The numbers and outcomes in a report's words: which runs count for the time, units, badges, links, names."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from logs.__main__ import main
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
    assert "82.00 s to train" in _text(_page(run / "report.html", run))


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
