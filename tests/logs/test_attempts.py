"""When a run goes on by itself after an attempt that failed, was stopped or was lost."""

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import pytest

from configs.errors import UserError
from logs.attempts import ATTEMPTS_FILE, Attempt, add_attempt, bad_hosts, left_out, read_attempts, why_not_again
from logs.checkpoints import SavedState, set_resume_checkpoint, write


def _attempt(
    outcome: Literal["failed", "stopped", "lost"], begin: int, end: int, *, host: str = "a", goes_on: bool = True
) -> Attempt:
    return Attempt("now", outcome, "cause", host, begin, end, goes_on)


@pytest.mark.parametrize(
    ("attempts", "limit", "reason"),
    [
        ([("failed", 0, 4)], 1, None),
        ([("failed", 0, 4)], 0, "it failed 1 time, and scheduler.max_restarts is 0"),
        ([("failed", 0, 4), ("failed", 4, 6)], 1, "it failed 2 times, and scheduler.max_restarts is 1"),
        ([("failed", 0, 4), ("stopped", 4, 6), ("lost", 6, 8)], 2, None),
        ([("stopped", 0, 4), ("lost", 4, 6)], 1, "it was stopped or lost 2 times, and scheduler.max_requeues is 1"),
        ([("failed", 0, 4), ("failed", 4, 4)], 9, None),
        ([("failed", 4, 4), ("lost", 4, 4)], 9, "2 attempts in a row kept no step after step 4"),
        ([("failed", 0, 0), ("failed", 0, 0), ("failed", 0, 2)], 9, None),
        ([("failed", 0, 2), ("failed", 2, 2), ("failed", 2, 2)], 9, "2 attempts in a row kept no step after step 2"),
    ],
)
def test_limits_and_progress(attempts: list[tuple[str, int, int]], limit: int, reason: str | None) -> None:
    assert why_not_again([_attempt(*each) for each in attempts], limit) == reason  # type: ignore[arg-type]


def test_a_run_that_was_started_by_hand_counts_anew() -> None:
    before = [_attempt("failed", 0, 0), _attempt("failed", 0, 0, goes_on=False)]
    assert why_not_again([*before, _attempt("failed", 0, 0)], 1) is None


def test_a_host_that_failed_twice_is_bad() -> None:
    assert bad_hosts([_attempt("failed", 0, 1, host=host) for host in "abcab"]) == ["a", "b"]


def test_a_host_that_was_stopped_or_lost_twice_is_not_bad() -> None:
    assert bad_hosts([_attempt("lost", 0, 1), _attempt("stopped", 0, 1), _attempt("failed", 0, 1)]) == []


def test_only_attempts_since_the_last_start_by_hand_count() -> None:
    by_hand = _attempt("failed", 0, 1, goes_on=False)
    since = [_attempt("failed", 1, 2), _attempt("failed", 2, 3)]
    for before in ([by_hand], [by_hand, _attempt("failed", 0, 1), by_hand]):
        assert why_not_again([*before, *since], 2) is None
        assert why_not_again([*before, *since], 1) == "it failed 2 times, and scheduler.max_restarts is 1"


def test_an_attempt_is_recorded_with_its_steps_and_the_hosts_that_are_left_out(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def may_leave_out(hosts: Sequence[str]) -> Sequence[str]:
        asked.append(list(hosts))
        return hosts

    def fail(host: str | None, limit: int = 9) -> str | None:
        return add_attempt(tmp_path, "failed", "broke", host=host, limit=limit, may_leave_out=may_leave_out)

    assert fail("b") is None
    with (tmp_path / ATTEMPTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"cut off\n[]\n')
    for step in (4, 8):
        kept = write(tmp_path, step, SavedState({}, {}), keep=2)
    set_resume_checkpoint(tmp_path, kept.with_name("step-00000004.ckpt"))
    assert fail("b") is None
    assert fail("b", limit=2) == "it failed 3 times, and scheduler.max_restarts is 2"
    first, second, third = read_attempts(tmp_path)
    assert [(each.from_step, each.kept_step) for each in (first, second, third)] == [(0, 0), (4, 8), (4, 8)]
    assert [each.goes_on for each in (first, second, third)] == [True, True, False]
    assert asked == [[], ["b"]]
    assert (first.leaves_out, second.leaves_out, third.leaves_out) == ([], ["b"], [])
    assert left_out(tmp_path) == ["b"]
    assert abs((datetime.now(timezone.utc) - datetime.fromisoformat(first.time)).total_seconds()) < 100
    assert first.words == "failed: broke; from step 0, kept no step, went on by itself"
    assert second.words == "failed: broke; from step 4, kept step 8, went on by itself without b"
    assert third.words == "failed: broke; from step 4, kept step 8, did not go on by itself"


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert read_attempts(tmp_path) == []
    row = {"time": "t", "outcome": "lost", "cause": "c", "host": None, "from_step": 1, "kept_step": 2, "goes_on": True}
    (tmp_path / ATTEMPTS_FILE).write_text(json.dumps(row | {"new": 1}) + "\n", encoding="utf-8")
    assert read_attempts(tmp_path) == [Attempt("t", "lost", "c", None, 1, 2, True)]


def test_no_progress_counts_from_the_step_of_the_begin_also_if_newer_checkpoints_were_lost() -> None:
    attempts = [_attempt("failed", 4, 2), _attempt("failed", 4, 2)]
    assert why_not_again(attempts, 9) == "2 attempts in a row kept no step after step 4"


def test_the_words_name_the_newest_checkpoint_also_if_the_attempt_made_none() -> None:
    assert "from step 4, kept step 4, went on" in _attempt("failed", 4, 4).words
    assert "from step 0, kept no step, did not go on by itself" in _attempt("lost", 0, 0, goes_on=False).words


def test_a_host_that_is_left_out_already_is_not_left_out_anew(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def leave_out(hosts: Sequence[str]) -> Sequence[str]:
        asked.append(hosts)
        return hosts

    for step in range(1, 4):
        set_resume_checkpoint(tmp_path, write(tmp_path, step, SavedState({}, {}), keep=9))
        write(tmp_path, step + 1, SavedState({}, {}), keep=9)
        add_attempt(tmp_path, "failed", "cause", host="a", limit=9, may_leave_out=leave_out)
    assert asked == [[], ["a"], []]
    assert left_out(tmp_path) == ["a"]


def test_hosts_are_sorted_and_a_failure_without_a_host_is_nobodys(tmp_path: Path) -> None:
    unknown = Attempt("now", "failed", "cause", None, 0, 1, True)
    assert bad_hosts([unknown, unknown, *(_attempt("failed", 0, 1, host=host) for host in "dbcadbca")]) == list("abcd")
    rows = [_attempt("failed", 0, 1).__dict__ | {"leaves_out": list(hosts)} for hosts in ("db", "ca", "b")]
    (tmp_path / ATTEMPTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert left_out(tmp_path) == list("abcd")


@pytest.mark.parametrize("line", ['{"time": "t"}', "5", "[]", "{", ""])
def test_a_line_that_is_no_attempt_hides_no_other(tmp_path: Path, line: str) -> None:
    row = json.dumps({**_attempt("lost", 1, 2).__dict__, "leaves_out": []})
    (tmp_path / ATTEMPTS_FILE).write_text(f"{line}\n{row}\n", encoding="utf-8")
    assert [each.kept_step for each in read_attempts(tmp_path)] == [2]


def test_an_attempt_that_cannot_be_recorded_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"gone/{ATTEMPTS_FILE}: cannot be written: the folder is missing"):
        add_attempt(tmp_path / "gone", "lost", "cause", limit=1)
