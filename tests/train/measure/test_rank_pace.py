"""Slow ranks are named while a run goes on: the rule on known times, the exchange, and rehearsed runs."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from logs.metrics import METRICS_FILE, read_metrics
from logs.show.reported_run import gather_run
from logs.show.watch import watch
from logs.show.wording import notes_of
from tests.programs import python
from train.comm.communicator import Communicator
from train.engine.protocol import Engine
from train.measure.rank_pace import RankPace, SlowRule
from train.measure.timing import Clock, StepTimes


def _compare(*own_ms: Sequence[float]) -> list[dict[str, Any]]:
    """Compare the ranks at steps 100, 200, ...; the slowest one takes as long as a step."""
    rule = SlowRule(0, len(own_ms[0]))
    return [
        rule.compare(100 * number, np.array(times) / 1e3, max(times) / 1e3) for number, times in enumerate(own_ms, 1)
    ]


def test_a_rank_is_slow_from_the_third_comparison_in_a_row_to_the_third_without() -> None:
    even, slow = (20.0, 20.5, 21.0, 19.5), (20.0, 20.5, 30.0, 19.5)
    found = _compare(slow, slow, even, slow, slow, slow, even, even, slow, even, even, even)
    assert [each["ranks"] for each in found] == [[]] * 5 + [[2]] * 6 + [[]]
    # Rank 2 takes 30 ms and the next one 20.5; of four ranks, the second fastest is the median one.
    assert {name: found[5][name] for name in ("since_step", "ratio", "cost_s")} == {
        "since_step": 300, "ratio": pytest.approx(1.5), "cost_s": pytest.approx(0.0095),
    }  # fmt: skip


def test_noise_names_nobody_and_two_slow_ranks_are_named_together() -> None:
    noise = [(20.0, 24.0), (24.0, 20.0), (20.0, 90.0), (20.0, 90.0), (90.0, 20.0), (22.0, 20.0)]
    assert [each["ranks"] for each in _compare(*noise)] == [[]] * 6
    assert [each["ranks"] for each in _compare(*[(20.0, 20.0, 40.0, 60.0)] * 3)] == [[], [], [2, 3]]


class World:
    """Ranks in lock-step, in one process; also the engine of their arrays, and what sums those."""

    def __init__(self, own_s: Sequence[float]) -> None:
        self._own_s, self._step = own_s, -1
        self._given: list[np.ndarray] = []
        self.sent_steps: list[tuple[int, int]] = []
        self.reports: list[list[dict[str, Any]]] = [[] for _ in own_s]
        self._clocks = [Clock(cast(Engine, self), 1) for _ in own_s]
        self._ranks = [
            RankPace(
                cast(Engine, self), cast(Communicator, self), clock, rank=rank, hosts=["a", "b", "c"], first_step=0,
                every_steps=10, run_ahead_steps=2, report=self.reports[rank].append,
            )
            for rank, clock in enumerate(self._clocks)
        ]  # fmt: skip

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def from_host(self, values: np.ndarray) -> np.ndarray:
        return values

    to_host = from_host

    def overwrite(self, target: np.ndarray, source: np.ndarray) -> None:
        target[:] = source

    def reduce(self, _name: str, arrays: Sequence[np.ndarray]) -> None:
        self._given += arrays

    def complete(self) -> None:
        pass

    def run(self, intervals: int, *, has_timing: bool = True) -> None:
        for _ in range(intervals):
            self._step += 10
            for own_s, clock, rank in zip(self._own_s, self._clocks, self._ranks, strict=True):
                clock.samples += [StepTimes(own_s, max(self._own_s) - own_s, 0.0)] * has_timing
                rank(self._step)
            if self._given:
                self.sent_steps.append((self._step, len(self._given)))
                total = sum(self._given)
                for each in self._given:
                    each[:] = total
                self._given.clear()


def test_all_ranks_exchange_together_every_few_seconds_and_find_the_same() -> None:
    world = World([0.030, 0.050, 0.029])
    world.run(100)
    assert world.reports[0] == world.reports[1] == world.reports[2]
    assert {given for _, given in world.sent_steps} == {3}
    # Five sampled intervals of 10 steps in 2.5 s: the first is left out. From then on, 3 s or more lie between two.
    between_s = np.diff([step for step, _ in world.sent_steps]) * 0.050
    assert ((between_s >= 3) & (between_s < 5)).all()
    last = world.reports[0][-1]
    assert (last["ranks"], last["hosts"]) == ([1], ["b"])
    assert (last["ratio"], last["cost_s"]) == pytest.approx((5 / 3, 0.020))


def test_nothing_is_sent_without_timing() -> None:
    world = World([0.030, 0.050])
    world.run(100, has_timing=False)
    assert world.sent_steps == []


@pytest.mark.slow
@pytest.mark.ranks
def test_a_slow_rank_is_named_while_the_run_goes_on_and_no_other(tmp_path: Path) -> None:
    """Steps of 0.3 s or more, by sleeps and cycles alone, so that 48 steps hold three exchanges on any machine."""
    folder = tmp_path / "run"
    words = [
        "digits", "--cluster", "dgx-a100", "--set", "cluster.ranks_per_node=2", "--ranks", "2", "--speed", "0.1",
        "--set", "run.log_every_steps=2", "--set", "run.max_steps=48", "--fail", "slow@1:1",
        "--set", "cluster.communication.cycle_time_ms=20",  # Each cycle costs a rank 0.3 ms of its processor or more.
    ]  # fmt: skip
    done = python("-m", "train.rehearse", *words, "--run-dir", str(folder), timeout=300)
    shown = io.StringIO()
    watch(folder, shown, every_s=1, once=True)
    rows = [row for row in read_metrics(folder / METRICS_FILE) if row["kind"] == "slow_ranks"]
    notes = [note for note in notes_of(gather_run(folder)) if "was slow" in note]
    assert rows[0]["ranks"] == []
    named = re.search(r"rank 1 on \S+ is slow since about step \d+: .* times the median rank's own time", done.stderr)
    assert named
    assert set(re.findall(r"rank (\d) on \S+ is slow", done.stderr)) == {"1"}
    assert named.start() < done.stderr.index("step 48/48")
    assert rows[-1]["ranks"] == [1]
    assert rows[-1]["ratio"] > 3
    assert re.search(r"rank 1 on \S+ was slow from about step \d+ to \d+: ", shown.getvalue())
    assert len(notes) == 1
    assert notes[0].startswith("Rank 1 on ")
