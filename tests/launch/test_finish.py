"""The end of a run: its exit status, what is told of it, and the lines that it ends with."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_both, load_recipe
from launch.finish import finish_run
from launch.start.local import Outcome
from logs.__main__ import main as check
from logs.attempts import ATTEMPTS_FILE
from logs.checkpoints import SavedState
from logs.folder import RunFolder, Summary
from tests.dry_loop import dry_run
from tests.logs import samples

STOPPED = {"rank": 0, "host": "here", "step": 7, "message": "told to stop", "second_hand": False, "status": 75,
           "time": 1.0}  # fmt: skip
SUCCESS = Summary("digits", "success")
ABORTED = Summary("digits", "aborted", failure="loss not finite", steps=9)


def _folder(path: Path, *sets: str, passes: bool = True) -> RunFolder:
    """Return the folder of a run that wrote logs of which that of ruleset 4.0.0 passes, or one that wrote nothing."""
    sets = ("mlperf.ruleset=4.0.0", *sets)
    if passes:
        path.rmdir()
        samples.run_folder(path, overrides=sets, best=0.98)
        (path / "summary.json").unlink()
        log = path / "result_0.mll.txt"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        log.write_text("".join(line for line in lines if "cache_clear" not in line), encoding="utf-8")
    folder = RunFolder(path)
    folder.write_settings(*load_both("digits", "laptop", sets))
    return folder


CHECK = "MLPerf training 4.0.0 log check: fails: no result_0.txt was written"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("summary", "outcome", "passes", "status", "told"),
    [
        (SUCCESS, Outcome(9), True, 0, "end, digits: success"),
        (SUCCESS, Outcome(0), False, 1, f"failure, digits: success: {CHECK}"),
        # Rank 0 has written the summary of an end; what becomes of its launcher or of signals then, changes nothing.
        (replace(SUCCESS, resumed_from_step=3), Outcome(130, interrupted_by=2), False, 0, "end, digits: success"),
        (ABORTED, Outcome(9), False, 1, "failure, digits: aborted: loss not finite"),
        (ABORTED, Outcome(130, stopped_by=2), False, 1, "failure, digits: aborted: loss not finite"),
        (None, Outcome(130, interrupted_by=2), False, 130, "stop, digits: ended at once by a second Ctrl-C"),
        (None, Outcome(130, stopped_by=2), False, 130, "stop, digits: told to stop"),
        (None, Outcome(9), False, 1, "failure, digits: aborted: the launcher ended with status 9"),
        (None, Outcome(1), False, 75, "stop, digits: told to stop"),
    ],
)
def test_the_end_of_a_run_makes_the_exit_status_and_is_told(
    summary: Summary | None, outcome: Outcome, passes: bool, status: int, told: str, tmp_path: Path
) -> None:
    notify = "cluster.notify=echo $RUN_EVENT, $RUN_MESSAGE >$RUN_FOLDER/told"
    folder = _folder(tmp_path, notify, passes=passes)
    if told.startswith("stop"):
        (tmp_path / "failure_0.json").write_text(json.dumps(STOPPED), encoding="utf-8")
    if summary:
        folder.write_summary(summary)
    assert finish_run(folder, outcome) == status
    assert (tmp_path / "told").read_text(encoding="utf-8") == f"{told}\n"
    if summary is None:
        made = folder.summary()
        saved = told == "stop, digits: told to stop"
        assert (made.failed_rank, made.failed_step) == (None, 7 if saved else None)


@pytest.mark.parametrize(
    ("steps", "words"),
    [([], "give the same command again"), ([3, 7], "train --resume {folder}")],
)
def test_a_trained_network_that_was_not_saved_is_said_last_with_what_gets_it(
    steps: list[int], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("data.source=folders", "mlperf.submits=false")
    folder = _folder(tmp_path, *own, passes=False)
    for step in steps:
        folder.checkpoints.write(step, SavedState({}, {}), keep=2)
    summary = Summary("digits", "aborted", steps=9, top1=0.98, failure="the disk is full", is_saved=False)
    folder.write_summary(summary)
    assert finish_run(folder, Outcome(0)) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last.partition(":")[0]) == (
        "digits: aborted: the disk is full",
        "  the trained network was not saved",
    )
    assert "free space" in last
    assert words.format(folder=tmp_path) in last


@pytest.mark.medium
def test_a_run_ends_with_its_figures_and_no_word_on_a_log_that_nobody_submits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    folder = _folder(tmp_path / "runs" / "one", "mlperf.submits=false")
    attempt = {"time": "t", "outcome": "lost", "cause": "gone", "host": None, "from_step": 0, "kept_step": 19}
    (folder / ATTEMPTS_FILE).write_text(json.dumps(attempt | {"goes_on": True}) + "\n", encoding="utf-8")
    folder.write_summary(
        Summary(
            "digits", "success", top1=0.98, target=0.97, epochs=8, steps=149, world_size=2, init_s=3.25,
            run_s=12.34, images_per_s=1234.56, input_wait_fraction=0.0123, comm_exposed_fraction=0.21,
            resumed_from_step=19, changes=["4 ranks instead of 2"], rcp={"words": "normal: 36 epochs"},
        )
    )  # fmt: skip
    assert finish_run(RunFolder(Path("runs/one")), Outcome(0)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits: success",
        "  top-1 0.9800 (target 0.97) after epoch 8, step 149",
        "  resumed from step 19: times and rates are of the last part",
        "  resumed with 4 ranks instead of 2",
        "  an attempt lost: gone; from step 0, kept step 19, was restarted automatically",
        "  12.3 s of training, 3.2 s of start-up, 1,234.6 images/s on 2 ranks",
        "  1.2% of a step waiting for input, 21.0% waiting for communication",
        "  runs/one",
    ]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("settings", "ended", "status", "line"),
    [
        (["4.0.0"], {"rcp": {"words": "normal"}}, 0, "MLPerf training 4.0.0 log check: passes; reference .*: normal"),
        (["0.6.0"], {}, 1, "MLPerf training 0.6.0 log check: fails: .*'cache_clear'.*; drop the images from .*"),
        (["0.6.0"], {"resumed_from_step": 9}, 0, "resumed from step 9: not for submission; times and rates are .*"),
        (["0.6.0"], {"is_cold": False}, 0, "not for submission: images were in memory as the run began, .*"),
        (["4.0.0"], {"status": "aborted", "failure": "loss not finite", "steps": 9}, 1, ""),
        (["0.6.0", "data.source=folders", "mlperf.submits=false"], {}, 0, "next: ./run.sh predict {run} IMAGE ..."),
    ],
)
def test_the_log_of_the_recipes_own_ruleset_decides_and_is_told_if_a_run_in_one_piece_submits(
    settings: list[str], ended: dict[str, Any], status: int, line: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The log of ruleset 4.0.0 passes here, that of 0.6.0 has no cache_clear."""
    ruleset, *others = settings
    folder = _folder(tmp_path, f"mlperf.ruleset={ruleset}", *others)
    folder.write_summary(replace(SUCCESS, **ended))
    assert finish_run(folder, Outcome(0)) == status
    *told, last = capsys.readouterr().out.splitlines()[1:]
    assert last == f"  {tmp_path}"
    assert re.fullmatch(f"(  {line.format(run=tmp_path)})?", "".join(told)) and bool(told) == bool(line)
    assert not json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))["0.6.0"]["passed"]
    assert check(["check", str(tmp_path)]) == status, "as train has ended"


@pytest.mark.medium
def test_a_run_that_goes_on_has_not_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = samples.run_folder(tmp_path / "run", overrides=("mlperf.submits=false",), best=0.98)
    for name in ("result_0.txt", "result_0.mll.txt"):
        text = (run / name).read_text(encoding="utf-8")
        (run / name).write_text("".join(line for line in text.splitlines(keepends=True) if "run_stop" not in line))
    (run / "summary.json").unlink()
    assert check(["check", str(run)]) == 1
    assert capsys.readouterr().out.startswith(f"FAIL  run    {run}\n      has not ended\n")


@pytest.mark.medium
def test_a_verdict_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path)
    folder.write_summary(SUCCESS)
    (tmp_path / f".verdict.json.{os.getpid()}").symlink_to("/dev/full")
    assert finish_run(folder, Outcome(0)) == 0
    assert capsys.readouterr().err.startswith("warning: ")


@pytest.mark.parametrize(
    ("figures", "lines"),
    [
        ({"top1": 0.5, "epochs": 1, "steps": 2, "input_wait_fraction": 0.1}, ["  top-1 0.5000 after epoch 1, step 2"]),
        ({"comm_exposed_fraction": 0.1}, []),
        ({"mean_auc": 0.75, "epochs": 3, "steps": 9}, ["  mean ROC-AUC 0.7500 after epoch 3, step 9"]),
    ],
)
def test_a_rehearsal_has_no_verdict_and_only_figures_that_belong_together_are_told(
    figures: dict[str, Any], lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path, passes=False)
    folder.write_summary(Summary("digits", "aborted", failure="rank 1 was killed", is_rehearsal=True, **figures))
    finish_run(folder, Outcome(1))
    first = "digits: aborted (rehearsal: nothing was trained, accuracies are invented): rank 1 was killed"
    assert capsys.readouterr().out.splitlines() == [first, *lines, f"  {tmp_path}"]


@pytest.mark.medium
def test_a_run_on_all_of_imagenet_that_reached_its_target_is_compared_with_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("mlperf-b32768")
    folder = RunFolder(dry_run(tmp_path / "run", recipe, [0.7] * 13 + [0.76]))
    cluster, summary = folder.cluster, folder.summary()
    (folder / "result_0.mll.txt").unlink()  # The checker would take a second more for each of the runs below.

    def finished(data: dict[str, Any], **changes: Any) -> Summary:
        changed = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})
        folder.write_settings(changed, cluster)
        folder.write_summary(replace(summary, **changes))
        finish_run(folder, Outcome(0))
        return folder.summary()

    found = "too fast: 54 epochs, reference 56.00 ± 0.45 at batch 32768, accepted: 55.44 epochs or more"
    rcp = finished({}).rcp
    assert rcp is not None
    assert (rcp["outcome"], rcp["words"]) == ("too fast", found)
    assert f"; reference convergence: {found}" in capsys.readouterr().out
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"status": "aborted"}),
        ({}, {"is_rehearsal": True}),
        ({"train_samples": 1_281_166}, {}),
        ({"source": "generated"}, {}),
    ]
    for data, changes in others:
        assert finished(data, **changes).rcp is None
    assert "reference" not in capsys.readouterr().out
