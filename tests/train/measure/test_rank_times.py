"""Each rank's times of a step: what the clock samples, what is gathered, who is named."""

from __future__ import annotations

from typing import cast

import pytest

from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine
from train.measure import timing
from train.measure.rank_times import gather_ranks, slowest_rank
from train.measure.timing import StepClock, StepTimes


class Times:
    """A clock that only waiting moves on, and an engine whose arrays are the moments at which they are there."""

    now_s = backward_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def first_element(self, _gradient: float) -> float:
        return self.backward_s

    def wait(self, *ready_s: float) -> None:
        self.now_s = max(self.now_s, *ready_s)


def test_a_step_is_computing_then_waiting_and_evaluations_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times()
    monkeypatch.setattr(timing, "time", times)
    clock = StepClock(cast(Engine, times), run_ahead_steps=2, sample_every_steps=4)
    clock.start()
    step_ends_s = 0.0
    for step in range(12):
        # 30 ms until backward is over, 10 more until everyone's gradients are there.
        times.backward_s, step_ends_s = step_ends_s + 0.030, step_ends_s + 0.040
        gradients = [step_ends_s]
        clock.first_layer_arrived(step, gradients[0])
        with clock.reductions(gradients):
            pass
        clock.step_queued(step_ends_s)
        if step == 6:
            with clock.pause():
                times.now_s = step_ends_s = times.now_s + 5.0
    assert len(clock.samples) == 3
    for sample in clock.samples:
        assert (sample.compute_s, sample.comm_wait_s) == pytest.approx((0.030, 0.010), abs=1e-9)
        assert sample.input_wait_s == 0


def test_median_and_95th_percentile_are_gathered() -> None:
    samples = [StepTimes(0.1 + 0.001 * number, 0.02, 0.0) for number in range(101)]
    (row,) = gather_ranks(SingleProcess(), samples)
    assert row == {
        "rank": 0, "compute_median_s": 0.15, "compute_p95_s": 0.195, "comm_wait_median_s": 0.02,
        "comm_wait_p95_s": 0.02, "input_wait_median_s": 0.0, "input_wait_p95_s": 0.0,
    }  # fmt: skip
    assert gather_ranks(SingleProcess(), []) == []


def test_the_slowest_rank_is_the_one_that_computes_longest() -> None:
    rows = [{"compute_median_s": seconds} for seconds in (0.10, 0.10, 0.13, 0.11)]
    slowest, excess = slowest_rank(rows)
    assert slowest == 2
    assert excess == pytest.approx(0.13 / 0.105 - 1)
    assert slowest_rank(rows[:1]) == slowest_rank([]) == (None, None)
    assert slowest_rank([{"compute_median_s": 0.0}] * 2) == (None, None), "none computes longer where none computed"


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
    slowest, excess = slowest_rank(rows)
    assert slowest == 1
    assert excess == pytest.approx(0.3 / 0.2 - 1)
