"""What one GPU is asked, tried at tiny shapes on the CPU: rows as they come, a table, and parts that are left out."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from configs.errors import STOPPED_STATUS
from configs.load import ROOT
from train.bench import bench_gpu
from train.bench.__main__ import _parse
from train.bench.bench_gpu import _has_stepped, _markdown, measure
from train.bench.measure import BenchRow, MeasurementFailed, make_report, summarize


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: ./run.sh setup --engine torch")
def test_steps_and_a_run_give_rows_and_a_table_and_what_needs_a_gpu_is_a_note(tmp_path: Path) -> None:
    words = ["--tiny", "--only", "run", "steps", "--seconds", "0.01", "--folder", str(tmp_path)]
    report = measure(_parse(["gpu", *words]))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["part"] for row in rows} == {"run", "steps"}
    assert len(rows) == len(report.rows)
    steps = {row["alternative"] for row in rows if row["figure"] == "step_ms" and row["median"] > 0}
    assert steps == {
        f"{recipe}, batch 8, {kind}" for recipe in ("imagenet-b256", "mlperf-b3264") for kind in ("bfloat16", "float32")
    }
    (taken,) = (row["median"] for row in rows if row["part"] == "run" and row["figure"] == "steps")
    assert taken == 12
    assert len(report.notes) == 1, report.notes
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table.count("\n| ") == len(rows) + 1


def test_no_measurement_begins_after_the_minutes_and_each_says_so(tmp_path: Path) -> None:
    report = measure(_parse(["gpu", "--minutes", "-1", "--skip", "steps", "batches", "--folder", str(tmp_path)]))
    assert report.rows == ()
    assert [note.partition(":")[0] for note in report.notes[1:]] == ["run", "resume", "calibrate", *["graphs"] * 3]
    assert all("not measured, -1 minutes were over" in note for note in report.notes[1:])


def test_a_measurement_that_fails_is_a_note_and_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.bench.bench_gpu.ROOT", tmp_path / "missing")
    words = ["--tiny", "--only", "calibrate", "steps", "--limit", "0.001", "--folder", str(tmp_path)]
    report = measure(_parse(["gpu", *words]))
    assert {note.partition(":")[0] for note in report.notes[1:]} == {"calibrate", "steps"}
    assert all("took more than 0.001 s" in note for note in report.notes[1:])


def test_the_last_words_of_a_part_that_fails_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_others: object) -> str:
        raise MeasurementFailed("a\nb\nc\nd")

    monkeypatch.setattr(bench_gpu, "run_ranks", fail)
    report = measure(_parse(["gpu", "--tiny", "--only", "graphs", "--folder", str(tmp_path)]))
    assert report.notes[1:] == ("graphs: b / c / d",) * 3


def test_the_table_has_the_lowest_before_the_highest() -> None:
    report = make_report(summarize("a step", [{"step_ms": each} for each in (1.0, 5.0, 2.0)]), ["a note"])
    assert _markdown(report).splitlines()[2:] == ["| a step | `step_ms` | 2 | 1 | 5 | 3 |", "", "- a note"]


def test_a_run_has_stepped_when_its_metrics_have_a_step(tmp_path: Path) -> None:
    assert not _has_stepped(tmp_path)
    for text, has_stepped in (("", False), ('{"kind": "start"}\n', False), ('{"kind": "interval", "step": 0}\n', True)):
        (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
        assert _has_stepped(tmp_path) is has_stepped


_RUN = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print("on standard output", os.getcwd(), flush=True)
print("on standard error", file=sys.stderr, flush=True)
pathlib.Path({folder!r}, "metrics.jsonl").write_text('{{"step": 0}}')
while True:
    signal.pause()
"""


@pytest.mark.parametrize("status", [STOPPED_STATUS, 0])
def test_a_run_is_told_to_stop_after_a_step_and_resumed_if_it_has_stopped(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], float]] = []
    asked: list[object] = []
    program = [sys.executable, "-I", "-S", "-c", _RUN.format(status=status, folder=str(tmp_path / "resumed"))]
    (tmp_path / "resumed").mkdir()

    def train(_: object, *given: object) -> list[str]:
        asked.extend(given)
        return program

    monkeypatch.setattr(bench_gpu._Bench, "train", train)
    monkeypatch.setattr(bench_gpu, "run", lambda command, timeout_s: started.append((command, timeout_s)))
    begin = time.monotonic()
    report = measure(_parse(["gpu", "--tiny", "--only", "resume", "--folder", str(tmp_path)]))
    if status == STOPPED_STATUS:
        assert [row.figure for row in report.rows] == ["stop_s", "resumed_run_s"]
        assert max(row.median for row in report.rows) < time.monotonic() - begin
        ((command, timeout_s),) = started
        assert command[-3:] == ["train", "--resume", str(tmp_path / "resumed")]
        assert timeout_s == _parse(["gpu"]).limit
    else:
        assert (report.rows, started) == ((), [])
        assert report.notes[1] == f"resume: {tmp_path / 'resumed'}: told to stop, ended with exit status 0"
    assert asked == [tmp_path / "resumed", "run.max_steps=400"]
    told = (tmp_path / "resumed.log").read_text(encoding="utf-8")
    assert told == f"on standard output {ROOT}\non standard error\n"


def test_a_run_that_ends_before_its_first_step_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu._Bench, "train", lambda *_: [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"])
    report = measure(_parse(["gpu", "--tiny", "--only", "resume", "--folder", str(tmp_path)]))
    assert report.notes[1].endswith("told to stop, ended with exit status 3")


def test_a_row_is_in_the_file_before_the_next_one_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "below"
    (first,), (second,) = (summarize(name, [{"step_ms": 2.0}]) for name in ("one", "two"))

    def action() -> Iterator[BenchRow]:
        yield first
        lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[-1]) == {"part": "steps", **asdict(first)}
        yield second

    monkeypatch.setattr(bench_gpu, "_tasks", lambda *_: iter([("steps", action)]))
    report = measure(_parse(["gpu", "--folder", str(folder)]))
    assert report.rows == (first, second)
    assert report.notes == (f"rows as they came: {folder}/rows.jsonl",)
    assert len((folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert (folder / "table.md").read_text(encoding="utf-8").count("`step_ms`") == 2
    measure(_parse(["gpu", "--folder", str(folder)]))
    assert len((folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 4, "earlier rows stay"


def test_measurements_begin_until_the_minutes_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1000.0, 1060.0, 1060.0, 1060.5])  # the start; the first task begins, and tells so; the second
    monkeypatch.setattr(bench_gpu, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    (row,) = summarize("one", [{"step_ms": 2.0}])
    monkeypatch.setattr(bench_gpu, "_tasks", lambda *_: iter([("steps", lambda: iter([row])), ("run", pytest.fail)]))
    report = measure(_parse(["gpu", "--minutes", "1", "--folder", str(tmp_path)]))
    assert report.rows == (row,)
    assert report.notes[1:] == ("run: not measured, 1 minutes were over",)


def test_rows_go_to_a_new_folder_of_the_benches_where_no_other_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(bench_gpu, "_tasks", lambda *_: iter([]))
    measure(_parse(["gpu"]))
    (folder,) = (tmp_path / "runs" / "bench").iterdir()
    assert re.fullmatch(r"gpu-\d{8}-\d{6}", folder.name)
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl", "table.md"]


_STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({folder!r}, "pid").write_text(str(os.getpid()))
pathlib.Path({folder!r}, "metrics.jsonl").write_text('{{"step": 0}}')
while True:
    signal.pause()
"""


def test_a_run_that_does_not_stop_is_killed_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, pathlib, signal\n" + _STUBBORN.format(folder=str(tmp_path / "resumed"))
    (tmp_path / "resumed").mkdir()
    monkeypatch.setattr(bench_gpu._Bench, "train", lambda *_: [sys.executable, "-I", "-S", "-c", code])
    monkeypatch.setattr(bench_gpu, "run", lambda *_, **_others: pytest.fail("nothing is resumed"))
    monkeypatch.setattr(bench_gpu, "_has_stepped", lambda folder: (folder / "metrics.jsonl").exists())
    real = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda self, timeout=None: real(self, timeout and 0.01))
    report = measure(_parse(["gpu", "--tiny", "--only", "resume", "--folder", str(tmp_path)]))
    assert report.rows == ()
    limit = f"{_parse(['gpu']).limit:g}"
    assert report.notes[1] == f"resume: {tmp_path / 'resumed'}: the run did not stop in {limit} s"
    pid = int((tmp_path / "resumed" / "pid").read_text(encoding="ascii"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).wait(timeout=10) == -signal.SIGKILL
