"""What runs are called: outcomes, headings and notes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logs.attempts import Attempt
from logs.judge.compliance import Verdict
from logs.judge.evidence import Problem
from logs.read.record import Evaluation, Pause, RunRecord
from logs.show.reported_run import ReportedRun
from logs.show.wording import heading, lead, notes_of, state_of, verdicts_of

OWN = {"recipe.name": "digits", "cluster.name": "laptop"}
ENDED: dict[str, Any] = {"ruleset": "4.0.0", "status": "success", "began_s": 1.79e9, "time_to_train_s": 82.0}


def _run(name: str = "a", *, settings: dict[str, Any] | None = None, **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})


def _ended(name: str = "a", **record: Any) -> ReportedRun:
    return _run(name, **ENDED | record)


def test_of_several_runs_the_fastest_and_the_slowest_success_are_told() -> None:
    runs = [_ended(str(n), time_to_train_s=length) for n, length in enumerate((74.0, 10.0, 18.0))]
    words = lead([*runs, _run("late", status="aborted", began_s=1.0)])
    assert words == (
        "3 of 4 runs succeeded, the fastest after <strong>10.00 s</strong>, the slowest after <strong>74.00 s</strong>."
    )
    resumed = _ended(attempts=3, pauses=(Pause(1.79e9 + 1, 1.79e9 + 21), Pause(1.79e9 + 40, 1.79e9 + 50)))
    assert "in 3 attempts, without pauses of 30.00 s" in lead([resumed])
    behind = _ended(attempts=2, pauses=(Pause(1.79e9 + 40, 1.79e9 - 3600),))
    assert "without pauses of unknown length, in which a clock was set back" in lead([behind])


def test_a_run_without_a_target_reached_none(tmp_path: Path) -> None:
    own, foreign = (replace(_ended(name), path=path) for name, path in (("own", tmp_path), ("log", Path("log"))))
    aimed = replace(own, summary={"target": 0.75, "status": "success"})
    for runs, told in (
        ([own], "without a target"), ([foreign], "to train."), ([aimed], "to train."),
        ([replace(own, summary={"status": "aborted"})], "No run has succeeded: aborted"),
        ([replace(aimed, summary={"target": 0.75, "status": "aborted"})], "No run has succeeded: aborted"),
    ):  # fmt: skip
        assert told in lead(runs)


def _with_accuracy(reached: float | None, **more: Any) -> ReportedRun:
    return replace(_ended(evaluations=(Evaluation(8, 80.0, reached, None),), **more), summary={"target": 0.75})


STOPPED = {"status": "aborted", "failure": "stopped, state saved after step 57"}


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (_with_accuracy(0.75), ("success", True)),
        (_with_accuracy(0.7499), ("below its target", False)),
        (_with_accuracy(0.7499, status="aborted"), ("aborted", False)),
        (_with_accuracy(0.7499, benchmark="bert"), ("success", True)),
        (replace(_ended(), summary={"status": "aborted"}), ("aborted", False)),
        (replace(_ended(), summary=STOPPED), ("stopped", None)),
        (replace(_ended(), problem=Problem("copied logs", "w")), ("copied logs", False)),
        (replace(_ended(), problem=Problem("copied logs", "w"), summary={"is_rehearsal": True}),
         ("rehearsal: success", None)),
        (_run(settings={"cluster.rehearsal.shrink": 2}), ("rehearsal: running", None)),
        (replace(_run(), log=Path("log")), ("no event in the log", None)),
        (replace(_run(ruleset="4.0.0"), log=Path("log")), ("no run", None)),
        (_run(settings=OWN), ("not started", None)),
        (_run(began_s=1.0), ("no end in the log", None)),
        (replace(_run(began_s=1.0), is_held=True), ("running", None)),
    ],
)  # fmt: skip
def test_a_run_is_called_by_what_its_files_say(run: ReportedRun, state: tuple[str, bool | None]) -> None:
    assert state_of(run) == state


def test_a_run_that_was_stopped_is_not_judged() -> None:
    verdict = Verdict("4.0.0", passed=False, messages=("CLOSED: a complaint",))
    died = {"status": "aborted", "failure": "rank 1 died"}
    for summary, attempts, verdicts, told in ((died, 1, 1, "./run.sh check a explains"), (STOPPED, 1, 0, "")):
        run = replace(_ended(attempts=attempts), summary=summary)
        run.__dict__["verdicts"] = [verdict]
        assert len(verdicts_of(run)) == verdicts
        found = [note for note in notes_of(run) if note.startswith("4.0.0")]
        assert len(found) == verdicts and all(told in note for note in found)


def test_headings_name_recipe_cluster_and_date_or_the_number_of_runs() -> None:
    digits = _run("d", settings=OWN, began_s=1.79e9)
    for runs, words in (
        ([digits], "digits on laptop, 21 September 2026"), ([_run("alone")], "alone"),
        ([_run("a", submitter="Org", platform="box")], "Org, box"), ([_run("a"), _run("b")], "2 runs side by side"),
        ([digits, _run("b", submitter="Org")], "2 runs side by side"),
    ):  # fmt: skip
        assert heading(runs) == words


def test_all_notes_of_a_run_stand_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.txt").write_text("a step took 2 ms\n", encoding="utf-8")
    attempt = Attempt("t", "failed", cause="rank 1 broke", host="b", from_step=0, kept_step=1, goes_on=True)
    run = ReportedRun(
        "a",
        tmp_path,
        None,
        RunRecord(tmp_path, status="success", began_s=1.0, attempts=2, division="open", unreadable=3),
        summary={"is_rehearsal": True, "failure": "it broke"},
        restarts=[attempt, attempt],
        problem=Problem("copied logs", "w"),
    )  # fmt: skip
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=False, messages=("a complaint",))]
    told = [
        "rehearsal", "A step took 2 ms", "it broke", "Copied logs: w", "No images/s",
        "Attempt 1", "Attempt 2", "open division",
        "3 records", "4.0.0",
    ]  # fmt: skip
    assert all(word in note for word, note in zip(told, notes_of(run), strict=True)), notes_of(run)
