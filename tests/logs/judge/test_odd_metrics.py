"""Rows of metrics, phases and ranks at the bounds of what a run can have measured, and the order of the flaws."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from logs.judge.evidence import LONGEST_S, Flaw, damage, flaw_of, odd_metrics, read_phases, read_ranks
from tests.logs import samples

INTERVAL: dict[str, Any] = {"kind": "interval", "step": 9, "epoch": 1, "loss": 2.0}
EVALUATION: dict[str, Any] = {"kind": "evaluation", "step": 9, "epoch": 1}


def _odd(*rows: dict[str, Any], is_success: bool = True) -> str:
    return odd_metrics(rows, is_success=is_success).removeprefix("metrics.jsonl: ")


@pytest.mark.parametrize(
    ("key", "lowest", "highest"),
    [
        ("step", 0, 1e12), ("epoch", 1, 1e6), ("loss", 0, 1e6), ("lr", 0, 1e6), ("images_per_s", 0, 1e12),
        ("top1", 0, 1), ("mean_auc", 0, 1), ("seconds", 0, 1e9), ("time", 0, 1e11),
    ],
)  # fmt: skip
def test_each_number_of_a_row_has_bounds(key: str, lowest: float, highest: float) -> None:
    for bound in (lowest, highest):
        assert _odd(INTERVAL | {key: bound}) == ""
    for value in (lowest - 0.001, highest * 1.001, float("nan"), "1"):
        assert _odd(INTERVAL | {key: value}) == f"line 1: {key} is {value}, allowed: {lowest:g} to {highest:g}"


def test_a_row_needs_step_and_epoch_and_an_interval_a_loss_too() -> None:
    for key in ("step", "epoch", "loss"):
        row = {name: value for name, value in INTERVAL.items() if name != key}
        assert _odd(row, is_success=False).startswith(f"line 1: {key} is None, allowed: ")
    assert _odd(INTERVAL | {"loss": None}, is_success=False).startswith("line 1: loss is None")
    assert _odd(EVALUATION) == _odd(EVALUATION | {"top1": None}) == ""
    assert _odd({"step": 1}) == "line 1: kind is None, allowed: interval, evaluation"


@pytest.mark.parametrize("loss", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_ends_a_run_without_success_and_no_other_number_does(loss: float) -> None:
    assert _odd(INTERVAL | {"loss": loss}, is_success=False) == ""
    assert _odd(INTERVAL | {"lr": loss}, is_success=False).startswith("line 1: lr is ")
    assert _odd(INTERVAL | {"loss": -1.0}, is_success=False).startswith("line 1: loss is -1.0")
    assert _odd(is_success=False) == ""


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"step": 8}, {}, ""),
        ({"step": 9}, {}, "step 9 follows step 9"),
        ({"step": 8, "epoch": 2}, {"epoch": 1}, "epoch 1 follows epoch 2"),
        ({"step": 8, "time": 10.5}, {"time": 10.0}, ""),
        ({"step": 8, "time": 10.6}, {"time": 10.0}, "the time is 0.6 s earlier than in the row before it"),
        ({"step": 8, "time": 2010.0}, {"time": 10.0}, "the time is 2,000.0 s earlier than in the row before it"),
        ({"step": 8, "time": 10.6}, {}, ""),
        ({"step": 8}, {"time": 10.0}, ""),
        ({"kind": "evaluation", "step": 20, "epoch": 3, "time": 99.0}, {"time": 1.0}, ""),
    ],
)
def test_a_row_follows_the_row_of_its_kind(before: dict[str, Any], after: dict[str, Any], words: str) -> None:
    found = _odd(INTERVAL | before, INTERVAL | after)
    assert found == (f"line 2: {words}" if words else "")
    others = [EVALUATION | {"step": number} for number in (1, 2)]
    assert _odd(INTERVAL, *others, INTERVAL) == "line 4: step 9 follows step 9"


@pytest.mark.parametrize(
    ("top1", "correct", "total", "is_odd"),
    [
        (0.5, 5, 10, False), (0.5, 5.000009, 10, False), (0.5, 5.00002, 10, True), (0.5, 6, 10, True),
        (0.5, None, 10, False), (0.5, 5, None, False), (None, 5, 10, False), (0.5, -5, 10, False),
    ],
)  # fmt: skip
def test_an_accuracy_is_the_share_of_images_that_are_correct(
    top1: float | None, correct: float | None, total: int | None, is_odd: bool
) -> None:
    row = EVALUATION | {"top1": top1, "correct": correct, "total": total}
    assert _odd(row) == (f"line 1: top1 is {top1}, but {correct} of {total} are correct" if is_odd else "")


PHASE = {"phase": "a", "thread": "b", "begin_s": 0, "end_s": 1}


@pytest.mark.parametrize(
    ("content", "is_sound"),
    [
        ({"phases": [PHASE, PHASE | {"end_s": LONGEST_S, "begin_s": -LONGEST_S}]}, True), ({"phases": []}, True),
        *(({"phases": [PHASE, {key: value for key, value in PHASE.items() if key != lost}]}, False) for lost in PHASE),
        ({"phases": [PHASE | {"end_s": 1.1 * LONGEST_S}]}, False), ({"phases": [PHASE | {"begin_s": "0"}]}, False),
        ({"phases": [PHASE | {"begin_s": None}]}, False), ({"phases": {}}, False),
        ({}, False), ({"phases": [1]}, False),
    ],
)  # fmt: skip
def test_a_phase_has_a_name_a_thread_a_begin_and_an_end(
    tmp_path: Path, content: dict[str, Any], is_sound: bool
) -> None:
    path = tmp_path / "startup.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    if is_sound:
        assert read_phases(path) == content["phases"]
        return
    with pytest.raises(UserError) as caught:
        read_phases(path)
    words = "cannot be read (a row of phases is damaged); repeat the run, or remove the file"
    assert str(caught.value) == f"{path}: {words}"
    assert damage(tmp_path) == [f"startup.json: {words}"]


def test_a_row_of_ranks_needs_its_rank_alone(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    path.write_text('{"ranks": [{"rank": 0}, {"rank": 1, "compute_median_s": 2}]}', encoding="utf-8")
    assert read_ranks(path) == [{"rank": 0}, {"rank": 1, "compute_median_s": 2}]
    path.write_text('{"ranks": [{"rank": 0}, {"compute_median_s": 2}]}', encoding="utf-8")
    with pytest.raises(UserError, match=r"ranks\.json: cannot be read \(a row of ranks is damaged\)"):
        read_ranks(path)


def test_the_flaw_that_makes_the_others_doubtful_is_told_first(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    old, metrics, summary = (folder / name for name in ("result_0.mll.txt", "metrics.jsonl", "summary.json"))
    text = old.read_text()
    old.write_text(text + text.splitlines(keepends=True)[-1])
    assert flaw_of(folder) == Flaw("log out of order", "result_0.mll.txt: run_stop is logged twice")
    log = folder / "result_0.txt"
    log.write_text(log.read_text() + log.read_text().splitlines(keepends=True)[-1])
    both = "result_0.txt: run_stop is logged twice; result_0.mll.txt: run_stop is logged twice"
    assert flaw_of(folder) == Flaw("log out of order", both)
    rows = metrics.read_text()
    metrics.write_text(rows.replace('"loss": 2.3,', '"loss": -2.3,'))
    assert flaw_of(folder) == Flaw("impossible metrics", "metrics.jsonl: line 1: loss is -2.3, allowed: 0 to 1e+06")
    summary.write_text(summary.read_text().replace('"seed": 1', '"seed": 2'))
    assert flaw_of(folder) == Flaw("files disagree", "summary.json: seed is 2, but config.yaml has 1")
    (folder / "environment.json").unlink()
    assert (flaw_of(folder) or Flaw("", "")).kind == "missing files"
    (folder / "startup.json").write_text("[")
    (folder / "ranks.json").write_text("{}")
    flaw = flaw_of(folder)
    assert flaw is not None
    assert flaw.kind == "damaged files"
    assert [words.partition(":")[0] for words in flaw.words.split("; ") if ".json" in words] == [
        "startup.json", "ranks.json",
    ]  # fmt: skip


def test_the_logs_of_several_processes_of_another_submitter_need_no_order(tmp_path: Path) -> None:
    text = samples.mllog(samples.run_events())
    (tmp_path / "result_0.txt").write_text(text + text)
    assert flaw_of(tmp_path) is None
    assert flaw_of(tmp_path / "none") is None
