"""What the files of one run must agree on, and by how much they may differ."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_run
from logs.judge.eligible import (
    contradiction,
    disorder,
    impossible_times,
    is_own,
    missing_files,
    require_different_logs,
    require_result,
    require_same_machines,
)
from logs.read.parse import parse_log
from logs.read.record import RunRecord
from tests.logs import samples
from tests.logs.judge.test_eligible import edited_json, edited_log

LOG, OLD = "result_0.txt", "result_0.mll.txt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return samples.run_folder(tmp_path / "run", best=0.98)


def _contradiction(folder: Path) -> str:
    return contradiction(folder, parse_log(folder / LOG))


def _summary(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for key, value in values.items():
            edited_json("summary.json", key, value)(folder)

    return edit


def _old(before: str, after: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / OLD).read_text()
        assert before in text
        (folder / OLD).write_text(text.replace(before, after))

    return edit


def _rows(**values: object) -> Callable[[Path], None]:
    """Return a function that adds a row to the metrics."""

    def edit(folder: Path) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")

    return edit


def _both(*edits: Callable[[Path], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for each in edits:
            each(folder)

    return edit


LAST_STEP = 8 * 1198 // 64 - 1
STEPS = "steps is {}, but metrics.jsonl has another last step"
BATCH = '"global_batch_size", "value": 64'


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_summary(run_s=83.0), ""),
        (_summary(run_s=83.01), f"{LOG}: run time in s is 82.0 in the log, but 83.01 in summary.json"),
        (_summary(run_s=20.0, resumed_from_step=7), ""),
        (_summary(run_s=None), f"{LOG}: run time in s is 82.0 in the log, but missing in summary.json"),
        (_summary(top1=0.9800009), ""),
        (_summary(top1=0.980002), f"{LOG}: accuracy is 0.98 in the log, but 0.980002 in summary.json"),
        (_summary(top1=0.5, mean_auc=0.98), ""),
        (_summary(mean_auc=0.97), f"{LOG}: accuracy is 0.98 in the log, but 0.97 in summary.json"),
        (_summary(steps=None), ""),
        (_summary(steps=LAST_STEP + 1), ""),
        (_summary(steps=LAST_STEP), f"summary.json: {STEPS.format(LAST_STEP)}"),
        (_summary(steps=LAST_STEP + 2), f"summary.json: {STEPS.format(LAST_STEP + 2)}"),
        (_both(_summary(steps=LAST_STEP + 1), _rows(kind="evaluation", step=999, epoch=8, top1=0.98)), ""),
        (_summary(seed=None, recipe="digits", global_batch_size=64, world_size=2), ""),
        (edited_log(BATCH, BATCH.replace("64", "32")),
         f"{LOG}: global_batch_size is 32 in the log, but 64 in config.yaml"),
        (edited_log('"key": "seed"', '"key": "other"'), f"{LOG}: seeds is () in the log, but (1,) in {OLD}"),
        (_both(edited_log('"key": "seed"', '"key": "other"'), _old(" seed: ", " other: ")), ""),
        (_old('"eval_samples: {"value": 50000'[1:], 'eval_samples: {"value": 9'),
         f"{LOG}: eval_samples is 50000 in the log, but 9 in {OLD}"),
        (_old("eval_samples: ", "other: "), f"{LOG}: eval_samples is 50000 in the log, but missing in {OLD}"),
        (_old("lars_opt_momentum: ", "other: "), ""),
        (_old('lars_opt_momentum: {"value": 0.9', 'lars_opt_momentum: {"value": 0.8'),
         f"{LOG}: lars_opt_momentum is 0.9 in the log, but 0.8 in {OLD}"),
        (_old(":::MLL 1790000020.000 run_start", ":::MLL 1790000021.000 run_start"), ""),
        (_old(":::MLL 1790000020.000 run_start", ":::MLL 1790000021.100 run_start"),
         f"{LOG}: the time of run_start is 1790000020.0 in the log, but 1790000021.1 in {OLD}"),
        (_old(":::MLL 1790000020.000 run_start", ":::MLL 1790000020.000 other"),
         f"{LOG}: the time of run_start is 1790000020.0 in the log, but missing in {OLD}"),
        (_old("0.98", "0.9800009"), ""),
        (lambda folder: (folder / OLD).unlink(), ""),
        (_rows(kind="evaluation", step=9, epoch=9, mean_auc=0.5),
         f"{LOG}: accuracy after epoch 9 is missing in the log, but 0.5 in metrics.jsonl"),
        (_both(_summary(is_rehearsal=True), edited_log("0.98", "0.97")), ""),
        (_both(_summary(status="aborted", top1=0.1), edited_log('"status": "success"', '"status": "aborted"')), ""),
        (lambda folder: (folder / "metrics.jsonl").unlink(), ""),
    ],
)  # fmt: skip
def test_files_agree_up_to_their_tolerance(run: Path, edit: Callable[[Path], None], words: str) -> None:
    edit(run)
    assert _contradiction(run) == words


def test_accuracies_of_classes_are_compared_as_those_of_images_are(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"top1"', '"mean_auc"'))
    assert _contradiction(run) == ""


def test_a_log_that_has_not_ended_contradicts_no_summary_of_an_aborted_run(run: Path) -> None:
    record = replace(parse_log(run / LOG), status=None)
    assert "summary.json has status success" in contradiction(run, record)
    edited_json("summary.json", "status", "aborted")(run)
    assert contradiction(run, record) == ""


def test_a_run_at_its_target_has_reached_it_and_one_without_an_accuracy_has_not(run: Path) -> None:
    recipe, _ = load_run(run / "config.yaml")
    record = parse_log(run / LOG)
    require_result(run, recipe, record)
    (run / "metrics.jsonl").write_text("")
    without = replace(record, evaluations=())
    assert contradiction(run, without) == f"{LOG}: the last accuracy in the log is None, below the target of 0.97"
    exact = samples.run_folder(run.parent / "exact", best=0.97)
    assert _contradiction(exact) == ""


def test_a_result_is_refused_with_the_reason_of_its_end(run: Path) -> None:
    recipe, _ = load_run(run / "config.yaml")
    record = parse_log(run / LOG)
    remedy = "repeat the run, or give another one"
    with pytest.raises(UserError) as caught:
        require_result(run, recipe, replace(record, status=None))
    assert str(caught.value) == f"{run / LOG}: run_stop has status none, allowed: success; {remedy}"
    with (run / LOG).open("a") as file:
        file.write((run / LOG).read_text().splitlines(keepends=True)[-1])
    with pytest.raises(UserError) as caught:
        require_result(run, recipe, record)
    assert str(caught.value) == f"{run / LOG}: run_stop is logged twice; {remedy}"
    _summary(status="aborted", failure="rank 3 died")(run)
    with pytest.raises(UserError) as caught:
        require_result(run, recipe, record)
    words = "status is aborted (rank 3 died), allowed: success"
    assert str(caught.value) == f"{run}/summary.json: {words}; {remedy}"


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "metrics.jsonl"])
def test_one_file_of_this_program_makes_a_folder_its_own(tmp_path: Path, name: str) -> None:
    (tmp_path / LOG).touch()
    (tmp_path / "environment.json").touch()
    assert not is_own(tmp_path)
    (tmp_path / name).symlink_to("nowhere")
    assert is_own(tmp_path)


@pytest.mark.parametrize(("status", "names"), [("aborted", ""), ("success", ", metrics.jsonl, environment.json")])
def test_an_aborted_run_may_lack_metrics_and_environment(tmp_path: Path, status: Any, names: str) -> None:
    (tmp_path / "config.yaml").touch()
    found = missing_files(tmp_path, RunRecord(tmp_path / LOG, status=status))
    words = "nobody can tell whether the rest was changed"
    assert found == f"missing: summary.json, {LOG}, {OLD}{names}; {words}"


Told = tuple[float | None, str, dict[str, int]]


def _told(*events: Told) -> str:
    rows = (
        {"key": key, "metadata": metadata} | ({} if at is None else {"time_ms": round(1000 * (samples.BEGIN_S + at))})
        for at, key, metadata in events
    )
    return "".join(f":::MLLOG {json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (_told((9, "a", {}), (8.5, "b", {})), ""),
        (_told((9, "a", {}), (8.4, "b", {})), "b is 0.6 s earlier than the event before it"),
        (_told((9000, "a", {}), (8.5, "b", {})), "b is 8,991.5 s earlier than the event before it"),
        (_told((9, "a", {}), (None, "b", {}), (7, "c", {})), "c is 2.0 s earlier than the event before it"),
        (_told((9, "a", {})) + ":::MLLOG {\n" + _told((9, "run_stop", {})), "run_stop has no run_start before it"),
        (_told((0, "init_stop", {})), ""),
        (_told((0, "eval_stop", {"epoch_num": 2})), "eval_stop of epoch 2 has no eval_start before it"),
        (_told((0, "init_start", {}), (0, "init_start", {})), ""),
        (_told((0, "eval_start", {"epoch_num": 1}), (0, "eval_start", {"epoch_num": 2})), ""),
        *((_told((0, key.replace("stop", "start"), {}), *[(0, key, {})] * 2), f"{key} is logged twice")
          for key in ("init_stop", "epoch_stop", "eval_stop")),
        *((_told(*[(0, key, {})] * 2), f"{key} is logged twice") for key in ("run_start", "eval_start")),
        (_told(*[(0, "run_start", {})] * 2, *[(0, "eval_start", {})] * 2), "run_start is logged twice"),
        (_told((0, "epoch_stop", {}), (1, "run_stop", {})), "epoch_stop has no epoch_start before it"),
    ],
)  # fmt: skip
def test_the_first_disorder_of_a_log_is_told(tmp_path: Path, events: str, words: str) -> None:
    (tmp_path / LOG).write_text(events)
    assert disorder(tmp_path / LOG) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"status": None, "began_s": None}, ""),
        ({"began_s": None}, "run_start is missing, or is before 1970"),
        ({"began_s": 0.0}, "run_start is missing, or is before 1970"),
        ({"began_s": 0.5}, ""),
        ({"time_to_train_s": None}, "run_stop is earlier than run_start, or has no time"),
        ({"time_to_train_s": 0.0}, "run_stop is at the time of run_start"),
        ({"status": "aborted", "time_to_train_s": 0.0}, "run_stop is at the time of run_start"),
    ],
)
def test_times_that_cannot_be_are_told_in_words(changes: dict[str, Any], words: str) -> None:
    record = RunRecord(Path(LOG), status="success", began_s=1.8e9, time_to_train_s=5.0)
    assert impossible_times(replace(record, **changes)) == words


def test_of_two_folders_with_one_log_both_are_named(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOG).write_text(text)
    folders = [tmp_path / name for name in "abc"]
    require_different_logs(folders[:2])
    with pytest.raises(UserError) as caught:
        require_different_logs(folders)
    assert str(caught.value) == f"{folders[2]}: has the same log as {folders[0]}; give five different runs"


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        ({"cpu": "B"}, "processors"),
        ({"cores": 4}, "processors"),
        ({"gpus": [{"name": "H200"}]}, "GPUs"),
        ({"gpus": [{"name": "A100"}] * 2}, "GPUs"),
        ({"packages": {"mxnet": "2"}, "gpus": None}, "GPUs, packages"),
        ({"gpus": [{"name": "A100", "driver_version": "9"}], "hostname": "another"}, ""),
    ],
)
def test_runs_of_one_system_have_one_kind_of_processors_gpus_and_packages(
    other: Mapping[str, Any], differing: str
) -> None:
    first = {"cpu": "A", "cores": 2, "gpus": [{"name": "A100"}], "packages": {"mxnet": "1"}, "hostname": "one"}
    environments = [first, first, {**first, **other}]
    folders = [Path(name) for name in "abc"]
    if differing:
        with pytest.raises(UserError) as caught:
            require_same_machines(folders, environments)
        assert str(caught.value) == f"c: ran with other {differing} than a; give runs of one system"
    else:
        require_same_machines(folders, environments)
