"""Ranks that do not respond are named and told from slow ones, by signs in a folder.

Real ranks are frozen in tests/launch/faults.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from train.rank.identity import Identity
from train.rank.peers import Peers

HOSTS = ["a", "b", "c"]
STEPS = [0.05] * 9


def _peers(folder: Path, steps_s: Sequence[float | None] = STEPS) -> list[Peers]:
    """Return three ranks that have done steps of these seconds; None is a break between steps."""
    made = [Peers(folder, Identity(rank, 3, rank, 3, host, "none"), HOSTS, 2) for rank, host in enumerate(HOSTS)]
    for each in made:
        for step_s in steps_s:
            if step_s is None:
                each.paused()
            else:
                each.stepped(step_s)
    return made


def _waits() -> bool:
    return True


def _look(who: list[Peers], *moments: float) -> list[bool]:
    """Let the ranks look one after another at each moment of a stall; return whether one ends the run."""
    return [any(rank.look(stalled_s, _waits) for rank in who) for stalled_s in moments]


@pytest.mark.parametrize(
    ("steps_s", "early", "moments"),
    [
        pytest.param(STEPS, (0.4, 1, 1.9), (2.9, 15, 30), id="short steps"),
        pytest.param([], (1, 3, 9), (11, 90, 102), id="the first step, which compiles"),
        pytest.param([*STEPS, None], (1, 3, 9), (11, 90, 102), id="an evaluation, a checkpoint or a new size"),
        pytest.param([*STEPS, None, 30], (1, 3, 9), (11, 90, 102), id="a step after it"),
        pytest.param([*STEPS, None, 30, 0.05], (1, 1.9), (2.5, 20, 21), id="the steps after that one"),
        pytest.param([1, 1, 30, 1, 1, 1, 1], (4, 6, 19), (21, 150, 250), id="long steps, and one of half a minute"),
    ],
)
def test_a_rank_without_a_sign_is_named_once_and_ends_the_run_much_later(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    steps_s: list[float | None],
    early: tuple[float, ...],
    moments: tuple[float, ...],
) -> None:
    two = _peers(tmp_path, steps_s)[:2]
    _look(two, *early)
    assert caplog.messages == []
    assert _look(two, *moments) == [False, False, True]
    assert caplog.messages == [f"no step for {moments[0]:.1f} s: rank 2 on c does not respond"]


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


def test_a_rank_that_reached_a_break_before_the_others_keeps_its_sign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = _peers(tmp_path)
    _look(three, 1)
    three[0].paused()
    _look(three, 1.5, 3, 30)
    assert caplog.messages == []


def test_a_rank_that_waits_for_nobody_blames_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rank = _peers(tmp_path)[0]
    assert not any(rank.look(stalled_s, lambda: False) for stalled_s in (1, 3, 30))
    assert caplog.messages == []


def test_a_rank_that_cannot_leave_a_sign_of_its_own_blames_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert _look(_peers(tmp_path / "deleted")[:1], 1, 3, 30) == [False] * 3
    assert caplog.messages == []
