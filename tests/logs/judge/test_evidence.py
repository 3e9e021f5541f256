"""Run folders whose files do not support their result: damaged, missing, or unlike each other."""

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.judge import compliance
from logs.judge.evidence import problem_of
from logs.show.reported_run import gather_run
from logs.show.wording import state_of
from logs.usage import SAMPLES_FILE, USAGE_FILE
from tests.logs import samples
from tests.programs import Said
from tests.runs import FinishedRun

LOG, OLD = "result_0.txt", "result_0.mll.txt"
JSON_FILES = ["dataset.json", "environment.json", "ranks.json", "startup.json", "summary.json", USAGE_FILE]
_SAMPLE = {"time": samples.BEGIN_S, "busy_cores": 1.5, "machine_busy_cores": 1.9, "memory_bytes": 1 << 28}
LAST_STEP = 8 * 1198 // 64 - 1

Edit = Callable[[Path], Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    totals = {"wall_s": [9.2], "cpu_s": [2.8], "children_cpu_s": [0.0], "peak_memory_bytes": [1 << 28]}
    (folder / USAGE_FILE).write_text(json.dumps(totals))
    (folder / "dataset.json").write_text('{"class_names": ["cat", "dog"]}')
    (folder / SAMPLES_FILE).write_text(json.dumps(_SAMPLE) + "\n")
    return folder


def edited(name: str, before: str, after: str) -> Edit:
    """Return a function that replaces a text in a file of a run folder."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after))

    return edit


def summary(**values: object) -> Edit:
    """Return a function that changes values of the summary."""

    def edit(folder: Path) -> None:
        path = folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return edit


def without_lines(name: str, *words: str) -> Edit:
    def edit(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(line for line in lines if not all(word in line for word in words)))

    return edit


def _words(folder: Path) -> str:
    problem = problem_of(folder)
    return problem.words if problem else ""


@pytest.mark.ranks
def test_a_run_as_training_writes_it_has_no_problem(two_epoch_run: FinishedRun, run: Path) -> None:
    assert problem_of(two_epoch_run.folder) is None
    assert problem_of(run) is None


@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml", "metrics.jsonl", SAMPLES_FILE])
def test_a_file_that_is_damaged_is_named_in_one_line(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    contents = [b"{}[\n", b"5\n", b"\xff\xfe\n", b"\0\n", b"[\n" * 5_000, gzip.compress(whole)]
    if name not in ("metrics.jsonl", SAMPLES_FILE):  # whose last line may be cut off
        contents += [b"", whole[: len(whole) // 2]]
    for content in contents:
        (run / name).write_bytes(content)
        problem = problem_of(run)
        assert problem is not None
        assert (problem.kind, problem.words.partition(":")[0]) == ("damaged files", name)
        assert "\n" not in problem.words


def test_a_file_that_only_its_owner_may_read_is_not_called_damaged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_read, private = os.access, {run / "environment.json", run / "config.yaml"}
    # Root may read every file, so the system's answer is imitated.
    monkeypatch.setattr(os, "access", lambda path, mode: path not in private and may_read(path, mode))
    problem = problem_of(run)
    assert problem is not None
    assert problem.kind == "permission denied"
    assert problem.words == "config.yaml, environment.json: only the owner may read this; the owner can chmod a+r"


@pytest.mark.medium
@pytest.mark.parametrize("name", [*JSON_FILES, "config.yaml", "metrics.jsonl", SAMPLES_FILE, LOG])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_what_is_no_file_is_named_and_not_waited_for(run: Path, name: str, put: Edit) -> None:
    (run / name).unlink()
    put(run / name)
    assert _words(run) == f"{name}: cannot be read, because it is not a file"
    assert state_of(gather_run(run)) == ("damaged files", False)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("startup.json", {"phases": [{"phase": "a", "thread": "b", "begin_s": 0}]}, "phases.0.end_s: Field required"),
        ("ranks.json", {"ranks": [{"rank": 0}]}, "ranks.0.compute_median_s: Field required"),
        ("environment.json", {"gpus": ["x"]}, "gpus.0: "),
        ("summary.json", {"recipe": "digits", "status": "success", "init_s": float("nan")}, "NaN is no number of JSON"),
        (USAGE_FILE, {"wall_s": [1.0]}, "children_cpu_s, cpu_s, peak_memory_bytes: missing"),
    ],
)
def test_a_row_that_lacks_what_it_needs_is_damage(run: Path, name: str, content: object, words: str) -> None:
    (run / name).write_text(json.dumps(content) + "\n")
    found = _words(run)
    assert words in found
    assert found.startswith(name) == bool(words)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (summary(run_s=83.1), f"run time in s is 83.1 in summary.json, but 82.0 in {LOG}"),
        (summary(run_s=20.0, resumed_from_step=7), ""),
        (summary(top1=0.980002), f"accuracy is 0.980002 in summary.json, but 0.98 in {LOG}"),
        (summary(top1=0.5, mean_auc=0.98), ""),
        (summary(epochs=3), f"last epoch is 3 in summary.json, but 8 in {LOG}"),
        (summary(steps=LAST_STEP), f"steps is {LAST_STEP + 1} in metrics.jsonl, but {LAST_STEP} in summary.json"),
        (summary(recipe="other"), "recipe is other in summary.json, but digits in config.yaml"),
        (edited("config.yaml", "seed: 1\n", "seed: 8\n"), f"seed is 8 in config.yaml, but 1 in {LOG}"),
        (edited(LOG, '"seed", "value": 1', '"seed", "value": 8'), f"seed is 1 in {OLD}, but 8 in {LOG}"),
        (edited(OLD, 'lars_opt_momentum: {"value": 0.9', 'lars_opt_momentum: {"value": 0.8'), "lars_opt_momentum is 0"),
        (edited(LOG, '"value": 0.49', '"value": 0.48'), f"accuracy after epoch 4 is 0.49 in {OLD}, but 0.48 in {LOG}"),
        (without_lines(LOG, "eval_accuracy", "0.49"), f"evaluations is 2 in {OLD}, but 1 in {LOG}"),
        (edited("metrics.jsonl", '"top1": 0.49', '"top1": 0.5'), "accuracy after epoch 4 is 0.5 in metrics.jsonl, but"),
        (edited("metrics.jsonl", '"top1"', '"mean_auc"'), ""),
        (summary(status="aborted"), f"status is aborted in summary.json, but success in {LOG}"),
        (summary(status="aborted", failure="rank 0 was killed"), ""),
        (summary(status="aborted", failure="not saved", steps=9, is_saved=False), ""),
        (without_lines(LOG, "run_stop"), f"run_stop is missing in {LOG}, but summary.json has success"),
        (lambda run: [summary(is_rehearsal=True, top1=0.1)(run)], ""),
        (lambda run: [summary(status="aborted", top1=0.1)(run), edited(LOG, '"success"', '"aborted"')(run)], ""),
        (lambda run: [edited(name, "0.98", "0.96")(run) for name in (LOG, OLD, "summary.json", "metrics.jsonl")],
         f"the last accuracy in {LOG} is 0.96, below the target of 0.97"),
        (lambda run: [*(without_lines(name, "accuracy")(run) for name in (LOG, OLD)), summary(top1=None)(run),
                      without_lines("metrics.jsonl", '"top1"')(run)],
         f"the last accuracy in {LOG} is None, below the target of 0.97"),
    ],
)  # fmt: skip
def test_the_files_of_a_run_tell_the_same_up_to_a_tolerance(run: Path, edit: Edit, words: str) -> None:
    edit(run)
    found = _words(run)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize("name", [LOG, OLD, "metrics.jsonl", "summary.json"])
def test_an_accuracy_edited_in_one_file_fails_the_check_and_is_no_success_on_the_page(
    run: Path, said: Said, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    assert main(["check", str(run)]) == 0
    edited(name, "0.98", "0.99")(run)
    told = said(main, "check", run, status=1).out
    assert re.search(r"FAIL  files .*\n      accuracy .*0.9[89] in .*, but 0.9[89] in", told)
    assert state_of(gather_run(run)) == ("files disagree", False)


@pytest.mark.parametrize(("submits", "decides"), [("false", "----"), ("true", "FAIL")])
def test_a_log_that_decides_nothing_does_not_decide_because_another_file_is_damaged(
    run: Path, said: Said, submits: str, decides: str
) -> None:
    edited("config.yaml", "submits: true", f"submits: {submits}")(run)
    without_lines(LOG, "train_samples")(run)
    (run / USAGE_FILE).write_text("{")
    assert f"{decides}  4.0.0  {run}" in said(main, "check", run, status=1).out


@pytest.mark.parametrize("name", [LOG, OLD, "metrics.jsonl", "summary.json", "environment.json", "config.yaml"])
def test_a_run_that_has_ended_and_lacks_a_file_that_confirms_its_log_fails_the_check(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    (run / name).unlink()
    assert main(["check", str(run)]) == 1
    words = f"missing: {name}; changes to the other files cannot be detected"
    assert f"FAIL  files  {run}\n      {words}\n" in capsys.readouterr().out
    for own in ("config.yaml", "summary.json", "metrics.jsonl"):
        (run / own).unlink(missing_ok=True)
    assert main(["check", str(run)]) == 0, "other submitters' logs stand alone"


def test_an_aborted_run_may_lack_metrics_and_environment_and_has_not_ended_without_a_summary(
    tmp_path: Path, said: Said
) -> None:
    folder = samples.run_folder(tmp_path / "run", status="aborted")
    for name in ("metrics.jsonl", "environment.json"):
        (folder / name).unlink()
    assert problem_of(folder) is None
    (folder / "summary.json").unlink()  # its launcher was killed
    assert f"FAIL  run    {folder}\n      has not ended\n" in said(main, "check", folder, status=1).out
    for log in folder.glob("result_*"):  # its job waits in the queue
        log.unlink()
    assert said(main, "check", folder, status=1).out == f"FAIL  run    {folder}\n      has not ended\n"


def test_a_run_folder_without_its_configuration_is_no_folder_of_others_logs(run: Path, said: Said) -> None:
    (run / "config.yaml").unlink()
    assert len(json.loads(said(main, "report", run, "--json").out)) == 1
    assert state_of(gather_run(run)) == ("missing files", False)


def test_a_folder_of_runs_is_judged_and_reported_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    for name in ("a", "b"):
        samples.run_folder(tmp_path / "runs" / name, status="success" if name == "a" else "aborted")
    words = said(main, "report", tmp_path / "runs", tmp_path / "runs/b", "--json").out
    assert [run["status"] for run in json.loads(words)] == ["success", "aborted"]
    told = said(main, "check", tmp_path / "runs", status=1).out
    assert f"PASS  run    {tmp_path}/runs/a\n" in told
    assert f"FAIL  run    {tmp_path}/runs/b\n" in told


def test_a_run_exactly_at_its_target_or_without_one_has_no_problem(tmp_path: Path) -> None:
    assert problem_of(samples.run_folder(tmp_path / "exact", best=0.97)) is None
    assert problem_of(samples.run_folder(tmp_path / "none", overrides=("run.target_top1=null",))) is None
