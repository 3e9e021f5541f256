"""What runs are called: outcomes, headings, notes, and means only over runs that are alike."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logs.attempts import Attempt
from logs.judge.compliance import Verdict
from logs.judge.evidence import Problem
from logs.rank_times import LastStart, Startup
from logs.read.record import Evaluation, Pause, RunRecord
from logs.show.reported_run import ReportedRun
from logs.show.wording import heading, lead, notes_of, place_of, state_of, verdicts_of

OWN = {"recipe.name": "digits", "cluster.name": "laptop"}
ENDED: dict[str, Any] = {"ruleset": "4.0.0", "status": "success", "began_s": 1.79e9, "time_to_train_s": 82.0}


def _run(name: str = "a", *, settings: dict[str, Any] | None = None, **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})


def _ended(name: str = "a", **record: Any) -> ReportedRun:
    return _run(name, **ENDED | record)


def test_a_mean_is_of_runs_that_are_alike_only() -> None:
    alike = [_ended(str(n), time_to_train_s=length) for n, length in enumerate((10.0, 18.0, 26.0, 42.0, 74.0))]
    failed = _run("late", status="aborted", began_s=1.0, global_batch_size=8)
    assert lead([*alike, failed]) == (
        "<strong>26.00 s</strong> to train: median of 5 runs that reached the target, out of 6; fastest 10.00 s, "
        "slowest 74.00 s; olympic mean 28.67 s."
    )
    assert "olympic" not in lead(alike[:4])
    words = lead([*alike, _ended("other", global_batch_size=4096, submitter="<i>")])
    assert words == (
        "6 of 6 runs reached their target, the fastest after <strong>10.00 s</strong>. No mean: the runs differ in "
        "submitter, global batch."
    )


def test_a_run_without_a_target_reached_none(tmp_path: Path) -> None:
    own, foreign = (replace(_ended(name), path=path) for name, path in (("own", tmp_path), ("log", Path("log"))))
    aimed = replace(own, summary={"target": 0.75, "status": "success"})
    assert lead([own]) == "<strong>82.00 s</strong> of training to the last epoch, without a target."
    assert lead([foreign]) == lead([aimed]) == "<strong>82.00 s</strong> to train."
    assert lead([own, own]).startswith(
        "<strong>82.00 s</strong> to train: median of 2 runs without a target, out of 2;"
    )
    assert lead([own, own, aimed]).startswith("3 of 3 runs succeeded (1 reached their target, 2 had none), the fastest")
    other = replace(own, settings={"recipe.name": "other"})
    assert lead([own, other]).startswith("2 of 2 runs ran to their last epoch, without a target, the fastest after")
    assert lead([replace(own, summary={"status": "aborted"})]) == "No run has succeeded: aborted."
    assert lead([replace(aimed, summary={"target": 0.75, "status": "aborted"})]) == (
        "No run has reached its target: aborted."
    )


def test_the_time_of_a_resumed_run_is_that_without_its_pauses() -> None:
    resumed = _ended(attempts=3, pauses=(Pause(1.79e9 + 1, 1.79e9 + 21, 7), Pause(1.79e9 + 40, 1.79e9 + 50, 9)))
    assert lead([resumed]) == "<strong>82.00 s</strong> to train, in 3 attempts, without pauses of 30.00 s."


def _with_accuracy(reached: float | None, **more: Any) -> ReportedRun:
    return replace(_ended(evaluations=(Evaluation(8, 80.0, reached, None),), **more), summary={"target": 0.75})


@pytest.mark.parametrize(
    ("reached", "state"), [(0.75, ("success", True)), (0.7499, ("below its target", False)), (None, ("success", True))]
)
def test_a_success_has_reached_its_target(reached: float | None, state: tuple[str, bool]) -> None:
    assert state_of(_with_accuracy(reached)) == state
    assert state_of(_with_accuracy(reached, status="aborted")) == ("aborted", False)
    assert state_of(_with_accuracy(reached, benchmark="bert")) == ("success", True)
    assert state_of(replace(_with_accuracy(reached), summary={})) == ("success", True)


def test_the_summary_s_status_is_told_before_the_log_s_and_a_problem_before_both() -> None:
    run = _run(**ENDED)
    assert state_of(replace(run, summary={"status": "aborted"})) == ("aborted", False)
    assert state_of(replace(run, problem=Problem("copied logs", "w"))) == ("copied logs", False)
    rehearsal = replace(run, summary={"is_rehearsal": True}, problem=Problem("copied logs", "w"))
    assert state_of(rehearsal) == ("rehearsal: success", None)
    assert state_of(_run(settings={"cluster.rehearsal.shrink": 2})) == ("rehearsal: running", None)
    late = replace(_run(**ENDED | {"time_to_train_s": 0.0}), problem=Problem("copied logs", "w"))
    assert state_of(late) == ("impossible times", False)


def test_a_run_that_was_stopped_has_not_failed_and_is_not_judged() -> None:
    run = replace(_run(**ENDED | {"status": "aborted"}), summary={"status": "aborted", "failure": "rank 1 died"})
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=False, messages=("CLOSED: a complaint",))]
    assert (state_of(run), len(verdicts_of(run))) == (("aborted", False), 1)
    stopped = replace(run, summary={"status": "aborted", "failure": "stopped, state saved after step 57"})
    stopped.__dict__["verdicts"] = run.verdicts
    assert (state_of(stopped), verdicts_of(stopped)) == (("stopped", None), [])
    assert not [note for note in notes_of(stopped) if note.startswith("4.0.0")]
    resumed = replace(run, record=replace(run.record, attempts=2))
    resumed.__dict__["verdicts"] = run.verdicts
    assert [note for note in notes_of(resumed) if note.startswith("4.0.0")] == [
        "4.0.0: the log fails MLPerf's check: a resumed run is not for submission; ./run.sh check a explains why."
    ]


def test_a_run_that_has_not_ended_is_called_by_what_its_files_say(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    assert state_of(replace(_run(), log=log)) == ("no event in the log", None)
    assert state_of(replace(_run(ruleset="4.0.0"), log=log)) == ("no run", None)
    assert state_of(_run(settings=OWN)) == ("not started", None)
    assert state_of(_run(began_s=1.0)) == ("no end in the log", None)
    metrics = tmp_path / "metrics.jsonl"
    run = replace(_run(ruleset="4.0.0", began_s=1.0), path=tmp_path, log=log)
    assert state_of(run) == ("no end in the log", None), "no file is there"
    for silent, writing in ((log, metrics), (metrics, log)):
        for file, age_s in ((silent, 660), (writing, 540)):
            file.touch()
            os.utime(file, (time.time() - age_s,) * 2)
        assert state_of(run) == ("running", None)
        os.utime(writing, (time.time() - 660,) * 2)
        assert state_of(run) == ("no end in the log", None)
    log.touch()
    assert state_of(replace(run, path=log)) == ("no end in the log", None), "a log alone is no run that goes on"


def test_headings_name_recipe_cluster_and_date_and_what_all_runs_share() -> None:
    digits = _run("d", settings=OWN, began_s=1.79e9)
    assert heading([digits]) == "digits on laptop, 21 September 2026"
    assert heading([_run("alone")]) == "alone"
    assert heading([_run("a", submitter="Org", platform="box")]) == "Org, box"
    assert heading([_run("a"), _run("b")]) == "2 runs side by side"
    assert heading([digits, _run("b", submitter="Org")]) == "2 runs side by side, 21 September 2026"
    later = [_run("d", settings=OWN, began_s=1.79e9 + 86_400 * days) for days in (2, 0, 1)]
    assert heading(later) == "3 runs side by side: digits on laptop, 21 September 2026 to 23 September 2026"
    assert place_of(_run("a", platform="box")) == "box"
    assert place_of(_run("a")) == ""


def test_all_notes_of_a_run_stand_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.txt").write_text("a step took 2 ms\n", encoding="utf-8")
    attempt = Attempt("t", "failed", cause="rank 1 broke", host="b", from_step=0, kept_step=1, goes_on=True)
    run = ReportedRun(
        "a",
        tmp_path,
        None,
        RunRecord(tmp_path, status="success", began_s=1.0, attempts=2, division="open", init_starts=(2, 0.25),
                  unreadable=3),
        summary={"is_rehearsal": True, "failure": "it broke", "checkpoint_s": 0.5, "world_size": 2},
        startup=Startup(last=LastStart(1, "b", 2.0, 1.0, "data", 1.0, 0.0)),
        restarts=[attempt, attempt],
        problem=Problem("copied logs", "w"),
    )  # fmt: skip
    required = "Required EXACTLY_ONE occurrence of 'seed' but found 0"
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=False, messages=(required,))]
    begins = [
        "This run is a rehearsal", "A step took 2 ms.", "The run ended early: it broke.", "Copied logs: w.",
        "The times of the log cannot be: ", "No images/s: the log does not have train_samples and",
        "The run was stopped and resumed: 2 attempts.", "Training waited 0.50 s for checkpoints.",
        "Rank 1 on b was ready last, 1.00 s after", "Attempt 1 failed", "Attempt 2 failed",
        "The log is of the open division, which MLPerf does not", "2 ranks logged init_start, the last rank 0.250 s",
        "3 records of the log could not be read.", "4.0.0: the log fails MLPerf's check: a resumed run",
    ]  # fmt: skip
    assert [note[: len(begin)] for note, begin in zip(notes_of(run), begins, strict=True)] == begins


def test_the_rank_that_was_ready_last_is_named_if_there_are_several() -> None:
    last = LastStart(1, "b", ready_s=11.0, median_s=8.0, phase="data set", phase_s=6.0, phase_median_s=0.0)
    words = (
        "Rank 1 on b was ready last, 3.00 s after the median rank; most of that in data set: 6.00 s, where the median "
        "rank took 0.00 s."
    )
    for ranks, found, is_told in ((2, last, True), (1, last, False), (2, None, False)):
        run = replace(_ended(), summary={"world_size": ranks}, startup=Startup(last=found))
        assert (words in notes_of(run)) == is_told
