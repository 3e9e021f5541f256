"""Times are those of the slowest rank, and end with the last work that was queued."""

from types import SimpleNamespace
from typing import Any

import pytest

from train import probe
from train.comm.communicator import SingleProcess
from train.probe import allreduce_s, slowest_s


class _TwoRanks(SingleProcess):
    """Engine and communicator of the first of two ranks, by a clock that only waiting for queued work moves on."""

    def __init__(self, others_s: float) -> None:
        self.now_s, self.queued_s, self._others_s = 0.0, 7.0, others_s  # of before, which does not count

    def wait_all(self) -> None:
        self.now_s, self.queued_s = self.now_s + self.queued_s, 0.0

    def gather(self, _name: str, value: int) -> list[int]:
        return [value, round(1e9 * self._others_s)]

    def reduce(self, _name: str, _arrays: Any, _priority: int = 0) -> None:
        assert self.queued_s == 0.0, "a sum begins when the one before has ended"
        self.queued_s += 2.0


@pytest.mark.parametrize(("others_s", "expected_s"), [(1.5, 2.0), (3.0, 3.0)])
def test_a_time_is_that_of_the_slowest_rank_with_all_that_it_queued(
    others_s: float, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank: Any = _TwoRanks(others_s)
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: rank.now_s))
    assert slowest_s(rank, rank, lambda: rank.reduce("a", [])) == expected_s
    assert allreduce_s(rank, rank, "b", None) == expected_s
    assert allreduce_s(rank, rank, "c", None, repeats=5) == max(2.0, others_s / 5), "the mean of several"
