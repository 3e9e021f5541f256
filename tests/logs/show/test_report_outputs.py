"""The files that a report may replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.show.chart import LineChart
from logs.show.report import write_picture
from tests.logs import samples


@pytest.mark.parametrize("option", ["--out", "--plot"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run/result_0.txt", "which is a file that the report reads"),
        ("run/config.yaml", "which is a file that the report reads"),
        ("link", "which is a file that the report reads"),
        ("protected.html", "which is write-protected"),
        ("pipe", "which is no regular file"),
    ],
)
def test_a_report_replaces_no_input_and_no_odd_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    name: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    samples.run_folder(Path("run"))
    Path("link").symlink_to("run/metrics.jsonl")
    Path("protected.html").write_text("kept")
    Path("protected.html").chmod(0o555)  # every bit but those that allow to write
    os.mkfifo("pipe")
    before = _state(name)
    assert main(["report", "run", option, name]) == 2
    assert f"{option}: got {name}, {words}" in capsys.readouterr().err
    assert _state(name) == before


def _state(name: str) -> tuple[int, ...]:
    """Return what tells that a file was replaced or written; to follow a link changes the time of the last access."""
    found = os.lstat(name)
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def test_a_log_is_not_replaced_by_another_of_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, link = tmp_path / "log.html", tmp_path / "link.html"
    log.write_text(samples.mllog(samples.run_events()))
    link.symlink_to(log)
    assert main(["report", str(log), "--out", str(link)]) == 2
    assert "which is a file that the report reads" in capsys.readouterr().err


def test_a_log_that_is_the_only_input_is_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log.html"
    log.write_text(samples.mllog(samples.run_events()))
    before = log.read_bytes()
    assert main(["report", str(log), "--out", str(log)]) == 2
    assert log.read_bytes() == before


def test_a_picture_has_the_curves_of_runs_of_very_unlike_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [tmp_path / "short.txt", tmp_path / "long.txt"]
    for log, epochs in zip(logs, (4, 120), strict=True):
        log.write_text(samples.mllog(samples.run_events(epochs=epochs)))
    drawn: list[LineChart] = []
    monkeypatch.setattr("logs.show.report.save_charts", lambda _, charts: drawn.extend(charts))
    write_picture(logs, tmp_path / "a.svg")
    assert [(chart.heading, chart.x_name) for chart in drawn] == [("Accuracy by epoch", "epochs, logarithmic")]


def test_an_earlier_page_may_have_capitals_in_its_suffix(tmp_path: Path, undrawn: None) -> None:
    run = samples.run_folder(tmp_path / "run")
    (run / "PAGE.HTM").write_text("earlier")
    assert main(["report", str(run), "--out", str(run / "PAGE.HTM")]) == 0
