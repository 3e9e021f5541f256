"""Which runs are compared with MLPerf's reference convergence, and what a failed run's summary blames."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import pytest

from configs.load import dump, load_both, load_recipe
from configs.schema import Recipe
from launch import run
from launch.start.local import Outcome
from logs.folder import Summary, read_summary, write_summary
from logs.judge.rcp import ReferenceComparison

FOUND = ReferenceComparison(outcome="normal", epochs=36.0, reference=None, normalisation=1.0, words="normal: 36 epochs")


def _recipe(**data: object) -> Recipe:
    recipe = load_recipe("mlperf-b32768")
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})


@pytest.mark.parametrize(
    ("status", "is_rehearsal", "data", "is_compared"),
    [
        ("success", False, {}, True),
        ("aborted", False, {}, False),
        ("success", True, {}, False),
        ("success", False, {"train_samples": 1_281_166}, False),
        ("success", False, {"source": "generated"}, False),
    ],
)
def test_a_run_on_all_of_imagenet_that_reached_its_target_is_compared_with_the_reference(
    status: Literal["success", "aborted"], is_rehearsal: bool, data: dict[str, object], is_compared: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[object] = []

    def compare(records: list[object]) -> ReferenceComparison:
        asked.extend(records)
        return FOUND

    monkeypatch.setattr(run, "parse_log", lambda path: path)
    monkeypatch.setattr(run, "compare_with_reference", compare)
    write_summary(tmp_path, Summary("imagenet", status, is_rehearsal=is_rehearsal, steps=9))
    summary = run._with_reference(tmp_path, _recipe(**data))
    assert summary == read_summary(tmp_path), "the page and the report read the file"
    assert summary.rcp == (asdict(FOUND) if is_compared else None)
    assert summary.steps == 9
    assert asked == [tmp_path / "result_0.txt"] * is_compared


def test_the_summary_of_a_run_that_failed_names_rank_and_step_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, cluster = load_both("digits", "laptop")
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    report = {"rank": 1, "host": "here", "step": 7, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}
    (tmp_path / "failure_1.json").write_text(json.dumps(report), encoding="utf-8")
    monkeypatch.setattr(run, "write_verdict", lambda _folder: {})
    assert run.finish_run(tmp_path, recipe, cluster, Outcome(1, ((1, 1),))) == 1
    made = read_summary(tmp_path)
    assert (made.status, made.failed_rank, made.failed_step) == ("aborted", 1, 7)
    assert made.failure is not None
    assert capsys.readouterr().out == f"digits: aborted: {made.failure}\n  {tmp_path}\n"


def test_a_folder_below_the_current_one_is_told_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run.short_path(tmp_path / "here" / "runs" / "a") == "runs/a"
    assert run.short_path(tmp_path / "heredity") == f"{tmp_path}/heredity"
    assert run.short_path(tmp_path) == str(tmp_path)


def test_only_figures_that_belong_together_are_told(tmp_path: Path) -> None:
    summary = Summary("digits", "success", top1=0.5, epochs=1, steps=2, input_wait_fraction=0.1)
    assert run._report(tmp_path, summary, {}).splitlines() == [
        "digits: success", "  top-1 0.5000 after epoch 1, step 2", f"  {tmp_path}"
    ]  # fmt: skip
    bare = Summary("digits", "success", comm_exposed_fraction=0.1)
    assert run._report(tmp_path, bare, {}).splitlines() == ["digits: success", f"  {tmp_path}"]
