"""Run folders that nobody should believe: files damaged, edited in one place, or with measurements that cannot be."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.judge import compliance
from logs.judge.evidence import Flaw, damage, flaw_of, odd_metrics
from logs.show.reported_run import gather_run
from logs.show.wording import state_of
from logs.usage import SAMPLES_FILE, USAGE_FILE
from tests.logs import samples
from tests.logs.judge.test_eligible import edited_json, edited_log, packaged
from tests.runs import FinishedRun

JSON_FILES = ["environment.json", "ranks.json", "startup.json", "summary.json", USAGE_FILE]
_SAMPLE = {"time": samples.BEGIN_S, "busy_cores": 1.5, "machine_busy_cores": 1.9, "memory_bytes": 1 << 28}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    totals = {"wall_s": [9.2], "cpu_s": [2.8], "children_cpu_s": [0.0], "peak_memory_bytes": [1 << 28]}
    (folder / USAGE_FILE).write_text(json.dumps(totals))
    (folder / SAMPLES_FILE).write_text(json.dumps(_SAMPLE) + "\n")
    return folder


def edited_row(number: int, **values: Any) -> Callable[[Path], None]:
    """Return a function that changes values of a row of the metrics."""

    def edit(folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rows[number] |= values
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


@pytest.mark.ranks
def test_a_run_as_training_writes_it_has_no_flaw(two_epoch_run: FinishedRun, run: Path) -> None:
    assert flaw_of(two_epoch_run.folder) is None
    assert flaw_of(run) is None


@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml", "metrics.jsonl", SAMPLES_FILE])
@pytest.mark.parametrize("content", [b"{}[\n", b"[1, 2]\n", b"5\n", b"\xff\xfe\n", b"\0\n", b"[" * 10_000 + b"\n"])
def test_a_file_that_is_damaged_is_named_in_one_line(run: Path, name: str, content: bytes) -> None:
    if name == "config.yaml":
        # PyYAML looks through the rest of a line, at most 1024 characters, for a key's colon: 0.8 s for one long line.
        content = content.replace(b"[[", b"[\n[")
    (run / name).write_bytes(content)
    (words,) = damage(run)
    assert words.startswith(f"{name}: ")
    assert "\n" not in words
    flaw = flaw_of(run)
    assert flaw is not None
    assert flaw.words == words


@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml"])
def test_a_file_that_is_empty_cut_off_or_compressed_is_damaged(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    for content in (b"", whole[: len(whole) // 2], gzip.compress(whole), whole.decode().encode("utf-16")):
        (run / name).write_bytes(content)
        assert [words.partition(":")[0] for words in damage(run)] == [name]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_configuration_that_ends_with_a_whole_line_too_early_is_damaged(run: Path, share: float) -> None:
    lines = (run / "config.yaml").read_bytes().splitlines(keepends=True)
    (run / "config.yaml").write_bytes(b"".join(lines[: int(share * len(lines))]))
    (words,) = damage(run)
    assert words.startswith("config.yaml: ")


@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml", "metrics.jsonl", SAMPLES_FILE, "result_0.txt"])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_what_is_no_file_is_named_and_not_waited_for(run: Path, name: str, put: Callable[[Path], None]) -> None:
    (run / name).unlink()
    put(run / name)
    assert damage(run) == [f"{name}: cannot be read, because it is no file"]
    assert state_of(gather_run(run))[1] is not True


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (edited_row(2, loss=None, not_finite={"loss": "nan"}), r"line 3: loss is nan, allowed: 0 to 1e\+06"),
        (edited_row(2, loss=None, not_finite={"loss": "inf"}), "line 3: loss is inf"),
        (edited_row(2, loss=1e308), r"line 3: loss is 1e\+308"),
        (edited_row(2, loss=-0.1), "line 3: loss is -0.1"),
        (edited_row(2, loss=[1]), r"line 3: loss is \[1\]"),
        (edited_row(2, step=-1), "line 3: step is -1"),
        (edited_row(2, step=3), "line 3: step 3 follows step 36"),
        (edited_row(2, step="9"), "line 3: step is 9, allowed: 0 to"),
        (edited_row(2, epoch=None), "line 3: epoch is None"),
        (edited_row(2, epoch=1), "line 3: epoch 1 follows epoch 2"),
        (edited_row(2, time=1.0), "line 3: the time is .* s earlier than"),
        (edited_row(2, time="x"), "line 3: time is x"),
        (edited_row(2, images_per_s=1e308), "line 3: images_per_s is"),
        (edited_row(2, kind="other"), "line 3: kind is other, allowed: interval, evaluation"),
        (edited_row(-1, correct=5, total=10), "line 10: top1 is 0.98, but 5 of 10 are correct"),
    ],
)
def test_metrics_that_no_run_can_have_measured_are_refused(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    edit: Callable[[Path], None],
    words: str,
) -> None:
    # So the metrics alone make the exit status. The checker passes these logs, in 0.3 s of CPU time for each case.
    monkeypatch.setattr(compliance, "judge", samples.passed)
    edit(run)
    flaw = flaw_of(run)
    assert flaw is not None
    assert (flaw.kind, re.match(f"metrics.jsonl: {words}", flaw.words) is not None) == ("impossible metrics", True)
    assert state_of(gather_run(run)) == ("impossible metrics", False)
    assert main(["check", str(run)]) == 1
    assert f"      {flaw.words}\n" in capsys.readouterr().out


def test_a_row_twice_is_refused_and_a_loss_of_nan_only_where_the_run_succeeded() -> None:
    rows = [{"kind": "interval", "step": 9, "epoch": 1, "loss": float("nan")}]
    assert odd_metrics(rows, is_success=False) == ""
    assert odd_metrics(rows, is_success=True) == "metrics.jsonl: line 1: loss is nan, allowed: 0 to 1e+06"
    assert odd_metrics(rows * 2, is_success=False) == "metrics.jsonl: line 2: step 9 follows step 9"
    assert odd_metrics([], is_success=True) == "metrics.jsonl: holds no row, but the run has succeeded"


def edited_text(name: str, before: str, after: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after))

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (edited_json("summary.json", "recipe", "other"), "summary.json: recipe is other, but config.yaml has digits"),
        (edited_json("summary.json", "seed", 999), "summary.json: seed is 999, but config.yaml has 1"),
        (edited_json("summary.json", "target", 0.5), "summary.json: target is 0.5, but config.yaml has 0.97"),
        (edited_json("summary.json", "global_batch_size", 9), "summary.json: global_batch_size is 9, but config.yaml"),
        (edited_json("summary.json", "world_size", 2048), "summary.json: world_size is 2048, but config.yaml"),
        (edited_json("summary.json", "epochs", 3), "result_0.txt: the last epoch is 8 in the log, but 3 in summary"),
        (edited_json("summary.json", "steps", 3), "summary.json: steps is 3, but metrics.jsonl has another last step"),
        (edited_json("summary.json", "run_s", 3.0), "result_0.txt: run time in s is 82.0 in the log, but 3.0 in"),
        (edited_json("summary.json", "top1", "x"), "summary.json: is not a run's summary (top1: Input should be a"),
        (edited_text("config.yaml", "seed: 1\n", "seed: 8\n"), "summary.json: seed is 1, but config.yaml has 8"),
        (edited_log('"key": "seed", "value": 1', '"key": "seed", "value": 8'), "result_0.txt: the log has seed 8, but"),
        (
            edited_text("result_0.mll.txt", 'seed: {"value": 1,', 'seed: {"value": 8,'),
            "result_0.txt: seeds is (1,) in the log, but (8,)",
        ),
        (edited_text("result_0.mll.txt", '"success"', '"aborted"'), "result_0.txt: status is success in the log, but"),
        (
            edited_log('"train_samples", "value": 1198', '"train_samples", "value": 9'),
            "result_0.txt: train_samples is 9 ",
        ),
        (
            edited_log('"opt_base_learning_rate", "value": 10.5', '"opt_base_learning_rate", "value": 9'),
            "result_0.txt: ",
        ),
        (
            edited_text("result_0.mll.txt", ":::MLL 17", ":::MLL 18"),
            "result_0.txt: the time of run_start is 1790000020.0 ",
        ),
        (
            edited_text("result_0.mll.txt", "0.98", "0.97"),
            "result_0.txt: accuracy is 0.98 in the log, but 0.97 in result_0.m",
        ),
        (
            edited_json("summary.json", "epochs", None),
            "result_0.txt: the last epoch is 8 in the log, but missing in sum",
        ),
        (edited_json("summary.json", "target", None), "summary.json: target is None, but config.yaml has 0.97"),
        (edited_json("environment.json", "git", "x"), "environment.json: git is damaged; give the folder of a run"),
        (edited_json("environment.json", "gpus", ["x"]), "environment.json: gpus is damaged; give the folder of a run"),
        (lambda folder: (folder / "config.yaml").unlink(), "missing: config.yaml; nobody can tell"),
        (lambda folder: (folder / "environment.json").unlink(), "missing: environment.json; nobody can tell"),
    ],
)
def test_a_number_that_was_changed_in_one_file_is_told(run: Path, edit: Callable[[Path], None], words: str) -> None:
    edit(run)
    flaw = flaw_of(run)
    assert flaw is not None
    assert flaw.words.startswith(words)


def test_an_event_that_is_logged_twice_is_a_flaw_of_this_program_s_logs(run: Path) -> None:
    log = run / "result_0.txt"
    log.write_text(log.read_text() + log.read_text().splitlines(keepends=True)[-1])
    assert flaw_of(run) == Flaw("log out of order", "result_0.txt: run_stop is logged twice")


def test_a_run_without_a_target_needs_none_in_its_summary(tmp_path: Path) -> None:
    assert flaw_of(samples.run_folder(tmp_path / "run", overrides=("run.target_top1=null",))) is None


def test_a_run_folder_without_its_configuration_is_no_folder_of_others_logs(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.yaml").unlink()
    assert main(["report", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert state_of(gather_run(run)) == ("missing files", False)


@pytest.mark.parametrize("name", ["startup.json", SAMPLES_FILE, "metrics.jsonl"])
def test_package_names_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    for seed in range(5):
        samples.run_folder(tmp_path / f"run{seed}", seed, best=0.98)
    (tmp_path / "run3" / name).write_text("5\n")
    assert re.search(f"run3.*{name}: ", packaged(tmp_path, capsys))


def test_a_folder_in_place_of_the_verdict_changes_no_verdict(run: Path) -> None:
    (run / "verdict.json").unlink()
    (run / "verdict.json").mkdir()
    assert main(["check", str(run)]) == 0


def test_the_log_of_another_run_is_not_this_run_s(tmp_path: Path) -> None:
    folder, other = (samples.run_folder(tmp_path / str(seed), seed, best=0.98) for seed in (1, 2))
    for name in ("result_0.txt", "result_0.mll.txt", "summary.json"):
        shutil.copyfile(other / name, folder / name)
    flaw = flaw_of(folder)
    assert flaw is not None
    assert flaw.words == "summary.json: seed is 2, but config.yaml has 1"


def test_samples_and_totals_that_cannot_be_are_damage(run: Path) -> None:
    for value in (float("nan"), 1e308, -5, "x", None):
        (run / SAMPLES_FILE).write_text(json.dumps(_SAMPLE | {"busy_cores": value}) + "\n")
        assert [words.partition(";")[0] for words in damage(run)] == [
            f"{SAMPLES_FILE}: line 1 has a value that is no number, or cannot be"
        ]
    (run / SAMPLES_FILE).unlink()
    for totals in ({}, {"wall_s": [1.0]}, {"wall_s": 5, "cpu_s": [1], "children_cpu_s": [1], "peak_memory_bytes": [1]}):
        (run / USAGE_FILE).write_text(json.dumps(totals))
        assert damage(run)[0].startswith(f"{USAGE_FILE}: cannot be read (a total is no number of each rank)")
