"""The files that a report writes: where, over which others, and the curves for other programs."""

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from logs.__main__ import main
from tests.logs import samples
from tests.programs import Said, python
from tests.small_disk import small_disk


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--out", "run/classes"),
        ("--csv", "link.csv"),
        ("--plot", "link.svg"),
        ("--out", "protected.html"),
        ("--plot", "pipe.PNG"),
        ("--csv", "."),
    ],
)
def test_a_report_replaces_no_input_and_no_odd_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, option: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    samples.run_folder(Path("run"))
    Path("run/classes").touch()
    for link in ("link.csv", "link.svg"):
        Path(link).symlink_to("run/metrics.jsonl")
    Path("protected.html").write_text("kept")
    Path("protected.html").chmod(0o555)  # every bit but those that allow to write
    os.mkfifo("pipe.PNG")

    def state() -> tuple[int, ...]:
        """Return what tells that a file was replaced or written; following a link changes the time of access."""
        found = os.lstat(name)
        return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    before = state()
    assert (
        f"{option}: got {name}, which is read by this command, write-protected, or no regular file; give"
        in said(main, "report", "run", option, name, status=2).err
    )
    assert state() == before


@pytest.mark.medium
def test_an_earlier_output_in_a_run_folder_or_a_link_to_nothing_may_be_replaced(tmp_path: Path, undrawn: None) -> None:
    run = samples.run_folder(tmp_path / "run")
    (tmp_path / "gone.html").symlink_to(tmp_path / "nothing.html")
    for out in (run / "earlier.html", run / "earlier.HTM", tmp_path / "gone.html"):
        if not out.is_symlink():
            out.write_text("earlier")
        assert main(["report", str(run), "--out", str(out)]) == 0
        assert "<!doctype html>" in out.read_text(encoding="utf-8")


@pytest.mark.medium
def test_a_page_is_in_the_folder_of_a_single_run_and_else_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, undrawn: None
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    one, two = (str(samples.run_folder(tmp_path / name)) for name in ("one", "two"))
    assert said(main, "report", one).out == f"{one}/report.html\n"
    for paths in ([one, two], [f"{one}/result_0.txt"]):
        assert main(["report", *paths]) == 0
        assert (tmp_path / "here" / "report.html").is_file()
        (tmp_path / "here" / "report.html").unlink()
    assert not Path(two, "report.html").exists()
    assert main(["report", one, "--out", "new/folders/page.html"]) == 0
    assert Path("new/folders/page.html").is_file()


def test_what_is_no_run_among_runs_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/two"):
        samples.run_folder(Path(name))
    Path("runs/data").mkdir()
    Path("runs/notes.txt").write_text("to do\n")
    told = said(main, "report", *sorted(Path("runs").iterdir()), "runs/../runs/one", "--json")
    assert [figures["log"] for figures in json.loads(told.out)] == ["runs/one/result_0.txt", "runs/two/result_0.txt"]
    assert told.err == (
        "note: runs/data: contains neither result_*.txt nor config.yaml; it is left out\n"
        "note: runs/notes.txt: no line of an MLPerf log (:::ML) is in it; it is left out\n"
    )


@pytest.mark.medium
def test_a_picture_has_the_evaluations_and_the_losses_by_epoch(tmp_path: Path, said: Said) -> None:
    picture = tmp_path / "curves.svg"
    assert said(main, "report", samples.run_folder(tmp_path / "run"), "--plot", picture).out == f"{picture}\n"
    text = picture.read_text(encoding="utf-8")
    assert "Accuracy by epoch" in text
    assert "Loss by epoch" in text
    assert "seconds" not in text


def test_csv_has_the_points_of_each_curve_that_are_finite_numbers_with_epoch_and_seconds(tmp_path: Path) -> None:
    run, out = samples.run_folder(tmp_path / "run"), tmp_path / "new" / "curves.csv"
    metrics = run / "metrics.jsonl"
    text = metrics.read_text().replace('"loss": 2.3,', '"loss": NaN,').replace('"loss": 1.15,', '"loss": "no",')
    metrics.write_text(re.sub(r'"loss": 0.7666\d*(.*)"time": [^,]*', r'"loss": 0.0\1"time": null', text))
    assert main(["report", str(run), "--csv", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"run"}
    accuracies = [(row["epoch"], row["seconds"], row["value"]) for row in rows if row["curve"] == "accuracy"]
    assert accuracies == [("4.0", "41.0", "0.485"), ("8.0", "82.0", "0.97")]
    losses = [row for row in rows if row["curve"] == "loss"]
    assert [float(row["value"]) for row in losses] == pytest.approx([0, *(2.3 / epoch for epoch in range(4, 9))])
    assert [row["seconds"] for row in losses][:2] == ["", "40.0"]


def test_runs_and_logs_have_as_many_folders_in_their_names_as_tell_them_apart_and_else_numbers(tmp_path: Path) -> None:
    def names(*files: str) -> list[str]:
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(samples.mllog(samples.run_events()))
        out = tmp_path / "curves.csv"
        assert main(["report", *(str(tmp_path / file) for file in files), "--csv", str(out)]) == 0
        return list(dict.fromkeys(line.split(",")[0] for line in out.read_text().splitlines()[1:]))

    assert names("a/result_0.txt") == ["a/result_0"], "MLPerf gives all logs the same names"
    assert names("a/result_0.txt", "a/result_1.txt") == ["a/result_0", "a/result_1"]
    assert names("a/result_0.txt", "a/other.log") == ["result_0", "other"]
    assert names("a/x/v1.log", "b/x/v1.log") == ["a/x/v1", "b/x/v1"]
    assert names("c/d/e/f/g.log", "b/d/e/f/g.log") == ["c/d/e/f/g", "b/d/e/f/g"]
    assert names("a/b/c/d/e/f/g.log", "h/b/c/d/e/f/g.log") == ["c/d/e/f/g (1)", "c/d/e/f/g (2)"]


@pytest.mark.medium
def test_a_name_that_is_not_utf8_is_shown_without_its_odd_bytes(tmp_path: Path) -> None:
    run = samples.run_folder(tmp_path / "f\udce9e")
    for option, name in (("--csv", "a.csv"), ("--plot", "a.svg"), ("--out", "a.html")):
        assert main(["report", str(run), option, str(tmp_path / name)]) == 0
        assert "f e" in (tmp_path / name).read_text(encoding="utf-8") or option == "--plot"


@pytest.mark.ranks
@pytest.mark.parametrize("has_home", [True, False])
def test_no_home_folder_and_the_backend_of_jupyter_are_no_matter(tmp_path: Path, has_home: bool) -> None:
    run = samples.run_folder(tmp_path / "run")
    # Without HOME, Python asks the table of users, in which the user of a container often is not.
    nobody = "import os, pwd, runpy; del os.environ['HOME']; pwd.getpwuid = {}.__getitem__; runpy.run_module('logs', "
    module = ["-m", "logs"] if has_home else ["-c", f"{nobody}run_name='__main__')"]
    variables = {**os.environ, "HOME": "/proc/nothing", "MPLBACKEND": "module://of_jupyter"}
    done = python("-I", *module, "report", str(run), env=variables, check=True)
    assert (done.stdout, done.stderr) == (f"{run}/report.html\n", "")


def test_a_run_on_a_read_only_disk_gets_its_page_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (disk := tmp_path / "disk").mkdir()
    with small_disk(disk, "size=8m"):
        samples.run_folder(disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert main(["report", str(disk / "run")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --out: got {disk}/run/report.html, in a folder or on a disk that cannot be written")
