"""When a run goes on by itself after an attempt that failed, was stopped or was lost."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from logs.attempts import ATTEMPTS_FILE, Attempt, Attempts
from logs.checkpoints import CheckpointFolder, SavedState

EMPTY = SavedState({}, {})


def _attempt(outcome: Any, begin: int, end: int, **others: Any) -> Attempt:
    return Attempt(
        "now", outcome, "cause", **{"host": "a", "from_step": begin, "kept_step": end, "goes_on": True, **others}
    )


def _write(folder: Path, attempts: Sequence[Attempt]) -> None:
    lines = [json.dumps(asdict(attempt)) + "\n" for attempt in attempts]
    (folder / ATTEMPTS_FILE).write_text("".join(lines), encoding="utf-8")


BY_HAND = _attempt("failed", 0, 1, goes_on=False)


@pytest.mark.parametrize(
    ("earlier", "last", "limit", "reason"),
    [
        ([], ("failed", 0, 4), 1, None),
        ([("failed", 0, 4)], ("failed", 4, 6), 2, None),
        ([("failed", 0, 4)], ("failed", 4, 6), 1, "it failed 2 times, and scheduler.max_restarts is 1"),
        ([("failed", 0, 4), ("stopped", 4, 6)], ("lost", 6, 8), 2, None),
        ([("stopped", 0, 4)], ("lost", 4, 6), 1, "it was stopped or lost 2 times, and scheduler.max_requeues is 1"),
        ([("failed", 0, 4)], ("failed", 4, 4), 9, None),
        ([("failed", 4, 4)], ("lost", 4, 4), 9, "2 attempts in a row kept no step after step 4"),
        ([("failed", 0, 0), ("failed", 0, 0)], ("failed", 0, 2), 9, None),
        # Attempts before a start by hand do not count.
        ([("failed", 0, 0), BY_HAND], ("failed", 0, 0), 1, None),
        ([BY_HAND, ("failed", 1, 2)], ("failed", 2, 3), 1, "it failed 2 times, and scheduler.max_restarts is 1"),
    ],
)  # fmt: skip
def test_a_run_goes_on_as_often_as_it_may_and_while_it_makes_progress(
    earlier: list[Any], last: tuple[Any, int, int], limit: int, reason: str | None, tmp_path: Path
) -> None:
    _write(tmp_path, [each if isinstance(each, Attempt) else _attempt(*each) for each in earlier])
    checkpoints, (outcome, begin, end) = CheckpointFolder(tmp_path), last
    begun = checkpoints.write(begin, EMPTY, keep=9) if begin else None
    checkpoints.resume_from(begun)
    if end:
        checkpoints.write(end, EMPTY, keep=9)
    if begun and end < begin:
        begun.unlink()  # newer checkpoints were lost
    assert Attempts(tmp_path).add(outcome, "cause", limit=limit) == reason
    found = Attempts(tmp_path).read()[-1]
    assert (found.outcome, found.from_step, found.kept_step, found.goes_on) == (outcome, begin, end, reason is None)


def test_an_attempt_has_its_time_and_its_hosts_and_is_told_in_one_line(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def may_leave_out(hosts: Sequence[str]) -> Sequence[str]:
        asked.append(list(hosts))
        return hosts

    attempts, checkpoints = Attempts(tmp_path), CheckpointFolder(tmp_path)
    for step, limit in ((0, 9), (4, 9), (8, 9), (12, 3)):
        checkpoints.resume_from(checkpoints.write(step, EMPTY, keep=2) if step else None)
        if step:
            checkpoints.write(step + 2, EMPTY, keep=2)
        reason = attempts.add("failed", "broke", host="b", limit=limit, may_leave_out=may_leave_out)
    assert reason == "it failed 4 times, and scheduler.max_restarts is 3"
    assert asked == [[], ["b"], []], "a host that is left out already is not left out again"
    found = attempts.read()
    assert [list(each.leaves_out) for each in found] == [[], ["b"], [], []]
    assert list(attempts.left_out()) == ["b"]
    assert abs((datetime.now(timezone.utc) - datetime.fromisoformat(found[0].time)).total_seconds()) < 100
    assert [each.description for each in found] == [
        "failed: broke; from step 0, kept no step, was restarted automatically",
        "failed: broke; from step 4, kept step 6, was restarted automatically without b",
        "failed: broke; from step 8, kept step 10, was restarted automatically",
        "failed: broke; from step 12, kept step 14, was not restarted",
    ]


@pytest.mark.parametrize("line", ['{"time": "t"}', "5", "[]", "{", "", '{"cut off'])
def test_a_line_that_is_no_attempt_hides_no_other_and_fields_of_later_versions_are_ignored(
    tmp_path: Path, line: str
) -> None:
    assert Attempts(tmp_path).read() == []
    row = asdict(_attempt("lost", 1, 2)) | {"new": 1}
    (tmp_path / ATTEMPTS_FILE).write_text(f"{line}\n{json.dumps(row)}\n", encoding="utf-8")
    assert [each.kept_step for each in Attempts(tmp_path).read()] == [2]
