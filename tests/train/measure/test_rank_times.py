"""Each rank's times of a step: what is gathered, and who is named."""

from typing import Any

import pytest

from train.comm.communicator import SingleProcess
from train.measure.rank_times import gather_ranks, slowest_rank
from train.measure.timing import StepTimes


def test_median_and_95th_percentile_are_gathered() -> None:
    samples = [StepTimes(0.1 + 0.001 * number, 0.02, 0.0) for number in range(101)]
    (row,) = gather_ranks(SingleProcess(), samples)
    assert row == {
        "rank": 0, "compute_median_s": 0.15, "compute_p95_s": 0.195, "comm_wait_median_s": 0.02,
        "comm_wait_p95_s": 0.02, "input_wait_median_s": 0.0, "input_wait_p95_s": 0.0,
    }  # fmt: skip
    assert gather_ranks(SingleProcess(), []) == []


def test_every_rank_has_a_row_of_what_it_gathered_under_a_name_of_its_own() -> None:
    names: list[str] = []

    class TwoRanks(SingleProcess):
        def gather(self, name: str, value: int) -> list[int]:
            names.append(name)
            return [value, 3 * value]

    rows = gather_ranks(TwoRanks(), [StepTimes(0.1, 0.02, 0.004)])
    told = [(row["compute_median_s"], row["comm_wait_p95_s"], row["input_wait_median_s"]) for row in rows]
    assert told == [(0.1, 0.02, 0.004), (0.3, 0.06, 0.012)]
    assert [row["rank"] for row in rows] == [0, 1]
    assert len(set(names)) == 6, "two gathers of one name would be one"


@pytest.mark.parametrize(
    ("seconds", "slowest", "excess"),
    [
        ((0.10, 0.10, 0.13, 0.11), 2, pytest.approx(0.13 / 0.105 - 1)),
        ((0.1,), None, None),
        ((), None, None),
        ((0.0, 0.0), None, None),  # none computes longer where none computed
    ],
)
def test_the_slowest_rank_is_the_one_that_computes_longest(seconds: Any, slowest: int | None, excess: Any) -> None:
    assert slowest_rank([{"compute_median_s": each} for each in seconds]) == (slowest, excess)
