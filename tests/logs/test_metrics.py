"""Rows of metrics come back as they were, from strict JSON, also after a crash and in a resumed run."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from configs.plan import Position
from logs.metrics import MetricsWriter, read_metrics
from tests.logs.samples import CHARACTERS
from tests.small_disk import small_disk

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS)


def not_json(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.medium
@settings(max_examples=50)
@given(rows=st.lists(st.dictionaries(st.sampled_from(["loss", "lr", "note"]), VALUES), max_size=4))
def test_rows_come_back_as_they_were_from_strict_json(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        metrics = MetricsWriter(path)
        for row in rows:
            metrics.row(**row)
        metrics.flush()
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=not_json)
        # repr, because NaN does not equal itself.
        assert [repr(sorted(row.items())) for row in read_metrics(path)] == [repr(sorted(row.items())) for row in rows]


def test_a_number_that_is_not_finite_is_null_and_named_beside_and_a_row_without_one_names_none(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    metrics.row(step=np.int64(3), loss=np.float32("nan"), lr=0.5)
    metrics.row(step=1, top1=None)
    metrics.flush()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 3, "loss": None, "lr": 0.5, "not_finite": {"loss": "nan"}},
        {"step": 1, "top1": None},
    ]


@pytest.mark.medium
def test_rows_are_written_at_a_flush_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsWriter(path)
    for step in range(10_000):
        metrics.row(step=step)
    assert path.stat().st_size == 0
    metrics.flush()
    assert len(read_metrics(path)) == 10_000
    metrics.flush()
    assert len(read_metrics(path)) == 10_000


def test_a_last_line_that_was_cut_off_is_left_out_and_a_bad_line_before_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl: line 2 is not a row"):
        read_metrics(path)
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read"):
        read_metrics(tmp_path / "none.jsonl")


def test_a_resumed_run_drops_the_rows_of_steps_that_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsWriter(path)
    for step in (4, 9, 14, 19):
        first.row(kind="interval", step=step, epoch=1 + step // 10, loss=float("inf") if step == 4 else 1.0)
        if step % 10 == 9:
            first.row(kind="evaluation", step=step, epoch=1 + step // 10)
    first.flush()
    rows = read_metrics(path)
    positions = {Position(1, 4): 0, Position(2, 10): 3, Position(2, 15): 4, Position(2, 20): 5, Position(3, 20): 6}
    for at, kept in positions.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows).replace("Infinity", "1e999"))
        again = MetricsWriter(path, resume_at=at)
        again.row(kind="interval", step=99, epoch=9, loss=0.5)
        again.flush()
        assert read_metrics(path)[:-1] == rows[:kept]
        assert read_metrics(path)[-1]["step"] == 99


def test_a_resumed_run_without_metrics_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsWriter(path, resume_at=Position(2, 10))
    metrics.row(step=10)
    metrics.flush()
    assert read_metrics(path) == [{"step": 10}]


def test_a_disk_that_is_full_for_a_while_costs_a_warning_and_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, "size=64k"):
        metrics = MetricsWriter(disk / "metrics.jsonl")
        metrics.row(step=0)
        metrics.flush()
        (disk / "config.yaml").touch()
        (disk / "other").write_bytes(bytes(60 << 10))
        for step in range(1, 1000):
            metrics.row(step=step)
        for _ in range(2):
            metrics.flush()
            warning = capsys.readouterr().err
            assert warning.startswith(f"warning: {disk}/metrics.jsonl: cannot be written: the disk is full; ")
            assert warning.endswith("choose another place (of runs: paths.runs)\n"), "the folder of a run"
            assert warning.count("\n") == 1
        (disk / "other").unlink()
        metrics.row(step=1000)
        metrics.flush()
        assert [row["step"] for row in read_metrics(disk / "metrics.jsonl")] == list(range(1001))
