"""The files that a report may replace."""

import os
from pathlib import Path

import pytest

from configs.errors import UserError
from logs.__main__ import main
from logs.show.chart import LineChart
from logs.show.report import _names, _require_replaceable, write_picture, write_report
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


@pytest.mark.parametrize("suffix", [".html", ".htm", ".svg", ".png", ".csv"])
def test_an_earlier_output_in_a_run_folder_may_be_replaced(tmp_path: Path, suffix: str) -> None:
    earlier = tmp_path / f"earlier{suffix}"
    earlier.touch()
    _require_replaceable("--out", earlier, [tmp_path])
    kept = tmp_path / "kept.json"
    kept.touch()
    _require_replaceable("--out", kept, [tmp_path / "other"])
    for paths in ([tmp_path, tmp_path / "other"], [tmp_path / "other", kept]):
        with pytest.raises(UserError) as caught:
            _require_replaceable("--csv", kept, paths)
        words = "which is a file that the report reads; give another file name"
        assert str(caught.value) == f"--csv: got {kept}, {words}"


def test_a_link_to_nothing_may_become_a_file(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "gone.html")
    _require_replaceable("--out", tmp_path / "link.html", [tmp_path / "run"])


def test_curves_replace_no_file_that_the_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = samples.run_folder(tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["report", str(run), "--csv", str(run / "metrics.jsonl")]) == 2
    assert "--csv: got " in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_page_is_in_the_folder_of_a_single_run_and_else_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    one, two = (samples.run_folder(tmp_path / name) for name in ("one", "two"))
    assert write_report([one], None) == one / "report.html"
    assert (one / "report.html").is_file()
    for paths in ([one, two], [one / "result_0.txt"]):
        assert write_report(paths, None) == Path("report.html")
        assert (tmp_path / "here" / "report.html").is_file()
        (tmp_path / "here" / "report.html").unlink()
    assert not (two / "report.html").exists()
    assert write_report([one], Path("new/folders/page.html")).is_file()


@pytest.mark.parametrize(
    ("out", "words"), [(".", "got ., which cannot be a file; "), ("log.txt/x.html", " (File exists); ")]
)
def test_a_page_that_cannot_be_written_is_told_with_the_reason_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.txt").touch()
    with pytest.raises(UserError) as caught:
        write_report([Path("log.txt")], Path(out))
    assert str(caught.value).startswith(f"--out: got {out}, which cannot be a file")
    assert str(caught.value).endswith(f"{words}give a file name, for example report.html")


def test_logs_with_nothing_to_draw_are_all_named(tmp_path: Path) -> None:
    logs = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for log in logs:
        log.touch()
    with pytest.raises(UserError) as caught:
        write_picture(logs, tmp_path / "a.svg")
    words = "no evaluation and no loss to draw; give a run that has trained"
    assert str(caught.value) == f"{logs[0]}, {logs[1]}: {words}"


def test_names_have_as_many_folders_as_tell_them_apart_and_else_numbers(tmp_path: Path) -> None:
    for name in ("a/x/v1.0", "b/x/v1.0", "c/d/e/f"):
        (tmp_path / name).mkdir(parents=True)
    logs = [tmp_path / "a" / name for name in ("result_0.txt", "result_1.txt", "other.log")]
    for log in logs:
        log.touch()
    assert _names(logs[:1]) == ["a/result_0"], "MLPerf gives all logs the same names"
    assert _names(logs[:2]) == ["a/result_0", "a/result_1"]
    assert _names(logs) == ["result_0", "result_1", "other"]
    assert _names([tmp_path / "a/x/v1.0", tmp_path / "b/x/v1.0"]) == ["a/x/v1.0", "b/x/v1.0"]
    deep = tmp_path / "c/d/e/f"
    assert _names([deep, deep]) == [f"{tmp_path.name}/c/d/e/f ({number})" for number in (1, 2)]
    far = [tmp_path / name / "d/e/f/g" for name in "cb"]
    assert _names(far) == ["c/d/e/f/g", "b/d/e/f/g"]
