"""Ranks that do not respond are named and told from slow ones, by signs in a folder.

Real ranks are frozen in tests/launch/faults.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from train.rank.identity import Identity
from train.rank.peers import Peers

HOSTS = ["a", "b", "c"]
STEP_S = 0.05


def _peers(folder: Path, steps: int = 9) -> list[Peers]:
    """Return three ranks that have done steps of 50 ms."""
    made = [Peers(folder, Identity(rank, 3, rank, 3, host, "none"), HOSTS, 2) for rank, host in enumerate(HOSTS)]
    for each in made:
        for _ in range(steps):
            each.stepped(STEP_S)
    return made


def _waits() -> bool:
    return True


def _look(who: list[Peers], *moments: float) -> list[bool]:
    """Let the ranks look one after another at each moment of a stall; return whether one ends the run."""
    return [any(rank.look(stalled_s, _waits) for rank in who) for stalled_s in moments]


def test_a_rank_without_a_sign_is_named_once_within_three_seconds_and_ends_the_run_much_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path)
    _look([three[0], three[2]], 0.4, 1.0, 1.9)
    assert caplog.messages == []
    assert _look([three[0], three[2]], 2.9, 3.1, 15) == [False] * 3
    assert caplog.messages == ["no step for 2.9 s: rank 1 on b does not respond"]
    assert _look([three[0], three[2]], 30) == [True]


def test_a_slow_rank_whose_watchdog_still_runs_is_neither_named_nor_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert _look(_peers(tmp_path), *(0.25 * number for number in range(400))) == [False] * 400
    assert caplog.messages == []


def test_a_rank_that_comes_back_is_told_of_and_another_stall_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path)
    _look(three[1:], 1, 3, 15)
    _look(three, 0.1)
    assert caplog.messages == ["no step for 3.0 s: rank 0 on a does not respond", "rank 0 responds again"]
    assert list(tmp_path.iterdir()) == [], "a sign of an earlier stall would speak for a rank that freezes now"
    assert _look(three[:2], 1, 3, 15) == [False] * 3
    assert caplog.messages[2:] == ["no step for 3.0 s: rank 2 on c does not respond"]


def test_a_rank_that_was_late_with_its_sign_ends_no_run(tmp_path: Path) -> None:
    three = _peers(tmp_path)
    _look(three[:2], 1, 3)
    _look(three[2:], 5)
    assert _look(three[:2], 30, 300) == [False, False]


@pytest.mark.parametrize(
    ("steps", "since"),
    [
        pytest.param(0, lambda _: None, id="the first step, which compiles"),
        pytest.param(9, lambda rank: rank.paused(), id="an evaluation, a checkpoint or a new size"),
        pytest.param(9, lambda rank: (rank.paused(), rank.stepped(30)), id="a step after it"),
    ],
)
def test_between_steps_a_rank_has_ten_seconds_before_it_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: int, since: Callable[[Peers], object]
) -> None:
    three = _peers(tmp_path, steps)
    for rank in three:
        since(rank)
    _look(three[:2], 1, 3, 9)
    assert caplog.messages == []
    assert _look(three[:2], 11, 90, 102) == [False, False, True]
    assert caplog.messages == ["no step for 11.0 s: rank 2 on c does not respond"]


def test_a_rank_that_reached_a_break_before_the_others_keeps_its_sign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path)
    _look(three, 1)
    three[0].paused()
    _look(three, 1.5, 3, 30)
    assert caplog.messages == []


def test_the_limits_after_a_break_are_those_of_the_steps_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path)
    for rank in three:
        rank.paused()
        rank.stepped(30)
        rank.stepped(STEP_S)
    _look(three[:2], 1, 2.5)
    assert caplog.messages == ["no step for 2.5 s: rank 2 on c does not respond"]


def test_long_steps_make_long_limits_and_one_of_thirty_seconds_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path, steps=0)
    for rank in three:
        for seconds in (1, 1, 30, 1, 1, 1, 1):
            rank.stepped(seconds)
    _look(three[:2], 4, 6, 19)
    assert caplog.messages == []
    assert _look(three[:2], 21, 150, 250) == [False, False, True]
    assert len(caplog.messages) == 1


def test_a_rank_that_waits_for_nobody_blames_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rank = _peers(tmp_path)[0]
    assert not any(rank.look(stalled_s, lambda: False) for stalled_s in (1, 3, 30))
    assert caplog.messages == []


def test_a_rank_that_cannot_leave_a_sign_of_its_own_blames_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert _look(_peers(tmp_path / "deleted")[:1], 1, 3, 30) == [False] * 3
    assert caplog.messages == []
