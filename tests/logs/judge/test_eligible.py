"""Runs that are no result of a submission, and that no official tool refuses in the open division."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.judge.eligible import disorder
from tests.logs import samples
from tests.logs.judge.test_package import FIELDS

LOG = "result_0.txt"


def edited_log(before: str, after: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / LOG).read_text()
        assert before in text
        (folder / LOG).write_text(text.replace(before, after))

    return edit


def without_lines(name: str, *words: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not all(word in line for word in words)]
        assert len(kept) < len(lines)
        (folder / name).write_text("".join(kept))

    return edit


def edited_json(name: str, key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tree = json.loads((folder / name).read_text()) | {key: value}
        (folder / name).write_text(json.dumps(tree))

    return edit


def packaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    runs = [str(tmp_path / f"run{number}") for number in range(5)]
    assert main(["package", *runs, "--org", "T", "--out", str(tmp_path / "out"), *FIELDS]) == 2
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edited_json("summary.json", "is_rehearsal", True), "is a rehearsal, whose .* give runs that were trained"),
        (edited_log('"status": "success"', '"status": "aborted"'), "result_0.txt: run_stop has status aborted"),
        (edited_json("summary.json", "status", "aborted"), "summary.json: status is aborted, allowed: success"),
        (edited_json("summary.json", "target", 0.5), "target is 0.5, but config.yaml has 0.97"),
        (edited_log('"value": 0.98', '"value": 0.99'), "accuracy is 0.99 in the log, but 0.98 in summary.json"),
        (edited_log('"value": 0.49', '"value": 0.48'), r"after epoch 4 is 0.48 .*, but 0.49 in metrics.jsonl"),
        (
            without_lines(LOG, "eval_accuracy", "0.49"),
            r"after epoch 4 is missing in the log, but 0.49 in metrics.jsonl",
        ),
        (
            without_lines("metrics.jsonl", "evaluation", "0.49"),
            r"after epoch 4 is 0.49 in the log, but missing in metr",
        ),
        (edited_log('"key": "seed", "value": 3', '"key": "seed", "value": 8'), "has seed 8, but config.yaml has 3"),
        (edited_json("summary.json", "run_s", 20.0), "run time in s is 82.0 in the log, but 20.0 in summary.json"),
        (edited_json("environment.json", "cpu", "Another"), "ran with other processors than .*run0"),
        (edited_json("environment.json", "packages", {"mxnet": "2"}), "ran with other packages than .*run0"),
        (lambda folder: (folder / "summary.json").unlink(), "summary.json: cannot be read"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "metrics.jsonl: cannot be read"),
    ],
)
def test_a_run_whose_files_are_no_result_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], words: str
) -> None:
    for seed in range(5):
        samples.run_folder(tmp_path / f"run{seed}", seed, best=0.98)
    damage(tmp_path / "run3")
    assert re.search(f"run3.*{words}|run3: {words}", packaged(tmp_path, capsys))


_EPOCH_1 = ("epoch_start", {"epoch_num": 1})


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ([("x", {}, -1000)], "x is "),
        ([_EPOCH_1], "epoch_start of epoch 1 is logged twice"),
        ([("run_stop", {})], "run_stop is logged twice"),
        ([("eval_accuracy", {"epoch_num": 4})], "eval_accuracy of epoch 4 is logged twice"),
        ([("epoch_stop", {"epoch_num": 99})], "epoch_stop of epoch 99 has no epoch_start before it"),
        ([("resumed_from_step", {}), _EPOCH_1], ""),
        ([("run_stop", {}), ("resumed_from_step", {}), ("epoch_stop", {"epoch_num": 99})], ""),
        ([("resumed_from_step", {}), ("run_stop", {}), ("run_stop", {})], "run_stop is logged twice"),
    ],
)
def test_times_that_go_back_and_events_that_are_doubled_or_lost_are_told(
    tmp_path: Path, added: list[tuple[Any, ...]], words: str
) -> None:
    log = samples.run_folder(tmp_path / "run", 3, best=0.98) / LOG
    assert disorder(log) == ""
    end_ms = json.loads(log.read_text().splitlines()[-1].removeprefix(":::MLLOG "))["time_ms"]
    with log.open("a") as file:
        for key, metadata, *later_ms in added:
            event = {"time_ms": end_ms + sum(later_ms), "key": key, "value": 1, "metadata": metadata}
            file.write(f":::MLLOG {json.dumps(event)}\n")
    found = disorder(log)
    assert found.startswith(words)
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"status": "aborted", "best": 0.5}, "run_stop has status aborted, allowed: success"),
        ({"best": 0.96}, "the last accuracy in the log is 0.96, below the target of 0.97"),
    ],
)
def test_five_runs_that_missed_the_target_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: dict[str, Any], words: str
) -> None:
    for seed in range(5):
        samples.run_folder(tmp_path / f"run{seed}", seed, **run)
    assert words in packaged(tmp_path, capsys)


def test_a_run_under_two_paths_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(4):
        samples.run_folder(tmp_path / f"run{seed}", seed, best=0.98)
    shutil.copytree(tmp_path / "run1", tmp_path / "run4")
    error = packaged(tmp_path, capsys)
    assert "run4: has the same log as" in error
    assert "give five different runs" in error


def test_runs_without_a_target_cannot_have_reached_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(5):
        samples.run_folder(tmp_path / f"run{seed}", seed, overrides=("run.target_top1=null",))
    assert "config.yaml has no run.target_top1, so no run can reach it; give runs with" in packaged(tmp_path, capsys)
