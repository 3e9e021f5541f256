"""Outcomes, headings and notes at their bounds: what counts, what is told once, and in which order."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logs.attempts import Attempt
from logs.judge.compliance import Verdict
from logs.judge.evidence import Flaw
from logs.read.record import Evaluation, RunRecord
from logs.show.reported_run import ReportedRun
from logs.show.wording import heading, is_compared, lead, notes_of, place_of, state_of

OWN = {"recipe.name": "digits", "cluster.name": "laptop"}
ENDED: dict[str, Any] = {"ruleset": "4.0.0", "status": "success", "began_s": 1.79e9, "time_to_train_s": 82.0}


def _run(name: str = "a", *, settings: dict[str, Any] | None = None, **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})


def _with_accuracy(reached: float | None, **more: Any) -> ReportedRun:
    evaluations = (Evaluation(8, 80.0, reached, None),)
    return replace(_run(**ENDED | {"evaluations": evaluations} | more), summary={"target": 0.75})


@pytest.mark.parametrize(
    ("reached", "state"), [(0.75, ("success", True)), (0.7499, ("below its target", False)), (None, ("success", True))]
)
def test_a_success_has_reached_its_target(reached: float | None, state: tuple[str, bool]) -> None:
    assert state_of(_with_accuracy(reached)) == state
    assert state_of(_with_accuracy(reached, status="aborted")) == ("aborted", False)
    assert state_of(_with_accuracy(reached, benchmark="bert")) == ("success", True)
    assert state_of(replace(_with_accuracy(reached), summary={})) == ("success", True)


def test_the_summary_s_status_is_told_before_the_log_s_and_a_flaw_before_both() -> None:
    run = _run(**ENDED)
    assert state_of(replace(run, summary={"status": "aborted"})) == ("aborted", False)
    assert state_of(replace(run, flaw=Flaw("copied logs", "w"))) == ("copied logs", False)
    rehearsal = replace(run, summary={"is_rehearsal": True}, flaw=Flaw("copied logs", "w"))
    assert state_of(rehearsal) == ("rehearsal: success", None)
    assert state_of(_run(settings={"cluster.rehearsal.shrink": 2})) == ("rehearsal: running", None)
    late = replace(_run(**ENDED | {"time_to_train_s": 0.0}), flaw=Flaw("copied logs", "w"))
    assert state_of(late) == ("impossible times", False)


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


def test_a_heading_names_what_all_runs_share_and_leaves_out_what_none_has() -> None:
    digits = _run("d", settings=OWN, began_s=1.79e9)
    assert heading([_run("alone")]) == "alone"
    assert heading([_run("a", submitter="Org")]) == "Org"
    assert heading([_run("a"), _run("b")]) == "2 runs side by side"
    assert heading([digits, _run("b", submitter="Org")]) == "2 runs side by side, 21 September 2026"
    assert heading([digits, replace(digits, name="e"), digits]) == (
        "3 runs side by side: digits on laptop, 21 September 2026"
    )
    assert place_of(_run("a", platform="box")) == "box"
    assert place_of(_run("a")) == ""


def test_the_lead_of_several_runs_begins_with_their_median_and_tells_both_ends() -> None:
    runs = [_run(str(seconds), **ENDED | {"time_to_train_s": seconds}) for seconds in (90.0, 30.0, 600.0, 50.0)]
    words = "target, out of 4; fastest 30.00 s, slowest 10.00 min."
    assert (
        lead(runs)
        == f'<p class="lead"><strong>70.00 s</strong> to train: median of 4 runs that reached the {words}</p>'
    )
    other = _run("x", **ENDED | {"time_to_train_s": 9.0, "platform": "b"})
    assert "the fastest after <strong>9.00 s</strong>. No mean: the runs differ in platform.</p>" in lead(
        [*runs, other]
    )


def test_runs_without_a_time_to_train_are_told_by_their_outcomes_once_each() -> None:
    runs = [_run("a", status="aborted", began_s=1.0, time_to_train_s=1.0), _run("b"), _run("c")]
    assert lead(runs) == '<p class="lead">No run has reached its target: aborted, no run.</p>'
    flawed = replace(_run(**ENDED), flaw=Flaw("<x>", "w"))
    assert lead([flawed]) == '<p class="lead">No run has reached its target: &lt;x&gt;.</p>'


def test_one_attempt_is_no_resumption() -> None:
    once, twice = (lead([_run(**ENDED | {"attempts": attempts})]) for attempts in (1, 2))
    assert once == '<p class="lead"><strong>82.00 s</strong> to train.</p>'
    assert "to train, in 2 attempts and with the time between them.</p>" in twice
    assert not any("resumed" in note for note in notes_of(_run(**ENDED)))


@pytest.mark.parametrize("kind", ["damaged files", "missing files", "impossible metrics"])
def test_a_flaw_is_told_once_and_a_damage_that_is_a_problem_too_as_a_problem(kind: str) -> None:
    run = replace(_run(**ENDED), flaw=Flaw(kind, "what was found"))
    told = f"{kind.capitalize()}: what was found."
    assert notes_of(run).count(told) == 1
    notes = notes_of(replace(run, problems=("what was found",)))
    assert notes.count(told) == (1 if kind == "impossible metrics" else 0)
    assert notes.count("what was found.") == 1


def test_all_notes_of_a_run_stand_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.txt").write_text("a step took 2 ms\n", encoding="utf-8")
    attempt = Attempt("t", "failed", cause="rank 1 broke", host="b", from_step=0, kept_step=1, goes_on=True)
    last = {"rank": 1, "host": "b", "ready_s": 2, "median_s": 1, "phase": "data", "phase_s": 1, "phase_median_s": 0}
    run = ReportedRun(
        "a",
        tmp_path,
        None,
        RunRecord(tmp_path, status="success", began_s=1.0, attempts=2, division="open", init_starts=(2, 0.25),
                  unreadable=3),
        summary={"is_rehearsal": True, "failure": "it broke", "checkpoint_s": 0.5, "world_size": 2},
        last_start=last,
        restarts=[attempt, attempt],
        problems=("a problem",),
        flaw=Flaw("copied logs", "w"),
    )  # fmt: skip
    required = "Required EXACTLY_ONE occurrence of 'seed' but found 0"
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=False, messages=(required,))]
    begins = [
        "This run is a rehearsal", "A step took 2 ms.", "The run ended early: it broke.", "Copied logs: w.",
        "The times of the log cannot be: ", "No images/s: the log does not have train_samples and",
        "The run was stopped and resumed: 2 attempts.", "Training waited 0.50 s for checkpoints.",
        "Rank 1 on b was ready last, 1.00 s after", "Attempt 1 failed", "Attempt 2 failed",
        "The log is of the open division, which MLPerf does not", "2 ranks logged init_start, the last rank 0.250 s",
        "3 records of the log could not be read.", "a problem.", "4.0.0: seed is missing; log seed once",
    ]  # fmt: skip
    assert [note[: len(begin)] for note, begin in zip(notes_of(run), begins, strict=True)] == begins


def test_only_a_closed_or_unnamed_run_on_images_with_a_batch_is_compared() -> None:
    assert is_compared(_run(global_batch_size=64))
    assert is_compared(_run(global_batch_size=64, division="closed", benchmark="resnet"))
    for record in ({"division": "closed"}, {"global_batch_size": 64, "division": "open"},
                   {"global_batch_size": 64, "benchmark": "bert"}):  # fmt: skip
        assert not is_compared(_run(**record))


@pytest.mark.parametrize(
    ("benchmark", "images", "words"),
    [
        ("resnet", None, "The log does not say how many images it trains on; images/s count ImageNet's 1,281,167."),
        ("resnet", 1198, "The log counts 1,198 training images; ImageNet has 1,281,167, and images/s follow the log."),
        ("resnet", 1_281_167, ""), ("bert", 5, ""), (None, None, ""),
    ],
)  # fmt: skip
def test_the_images_of_another_s_log_are_told_where_they_are_not_imagenet_s(
    benchmark: str | None, images: int | None, words: str
) -> None:
    notes = notes_of(_run(benchmark=benchmark, train_samples=images))
    assert [note for note in notes if "ImageNet" in note] == ([words] if words else [])
