"""When a run goes on by itself after an attempt that failed, was stopped or was lost."""

from __future__ import annotations

from typing import Literal

import pytest

from logs.attempts import Attempt, bad_hosts, why_not_again


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
    ],
)
def test_limits_and_progress(attempts: list[tuple[str, int, int]], limit: int, reason: str | None) -> None:
    assert why_not_again([_attempt(*each) for each in attempts], limit) == reason  # type: ignore[arg-type]


def test_a_run_that_was_started_by_hand_counts_anew() -> None:
    before = [_attempt("failed", 0, 0), _attempt("failed", 0, 0, goes_on=False)]
    assert why_not_again([*before, _attempt("failed", 0, 0)], 1) is None


def test_a_host_that_failed_twice_is_bad() -> None:
    assert bad_hosts([_attempt("failed", 0, 1, host=host) for host in "abcab"]) == ["a", "b"]
