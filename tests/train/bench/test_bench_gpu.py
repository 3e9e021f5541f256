"""What one GPU is asked, tried at tiny shapes on the CPU: rows as they come, a table, and parts that are left out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from train.bench.__main__ import _parse
from train.bench.bench_gpu import measure


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
