"""The clock's figures on a machine whose times are known: an engine that computes by a clock of the test's own."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from train.engine.protocol import Engine
from train.measure import timing
from train.measure.timing import Clock


class Machine:
    """An engine whose arrays are the moments at which they are computed; waiting for one lets the time pass."""

    def __init__(self, compute_s: float, exposed_s: float, fetch_s: float) -> None:
        self.now = 100.0
        self.compute_s, self.exposed_s, self.fetch_s = compute_s, exposed_s, fetch_s
        self.free = self.now
        self.backward_end = 0.0
        self.most_ahead = 0

    def wait(self, *moments: float) -> None:
        self.now = max(self.now, *moments)

    def first_element(self, _gradient: float) -> float:
        return self.backward_end

    def run(
        self, clock: Clock, steps: int, micro_batches: int = 1, exposed_s: Mapping[int, float] | None = None
    ) -> None:
        """Queue steps as the loop does, some of them with other exposed times than ``self.exposed_s``."""
        done: list[float] = []
        for step in range(steps):
            for _ in range(micro_batches):
                with clock.input():
                    self.now += self.fetch_s
            self.backward_end = max(self.now, self.free) + self.compute_s
            self.free = self.backward_end + (exposed_s or {}).get(step, self.exposed_s)
            clock.first_layer_arrived(step, self.free)
            with clock.reductions([self.free, self.backward_end]):
                pass
            clock.step_queued(self.free)
            done.append(self.free)
            self.most_ahead = max(self.most_ahead, sum(moment > self.now for moment in done))


def _machine(monkeypatch: pytest.MonkeyPatch, compute_s: float, exposed_s: float, fetch_s: float) -> Machine:
    machine = Machine(compute_s, exposed_s, fetch_s)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: machine.now))
    return machine


def _clock(machine: Machine, every: int = 4) -> Clock:
    clock = Clock(cast(Engine, machine), 2, every)
    clock.start()
    return clock


def test_a_step_that_computes_longer_than_its_input_takes_waits_for_nothing_but_the_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = _machine(monkeypatch, compute_s=0.1, exposed_s=0.03, fetch_s=0.001)
    clock = _clock(machine)
    machine.run(clock, 40)
    assert len(clock.samples) == 10, "one step of four"
    for sample in clock.samples:
        assert sample.comm_wait_s == pytest.approx(0.03)
        assert sample.compute_s == pytest.approx(0.1, rel=0.02)
        # A sampled step drains the engine, so that the fetches of the next two are waited for.
        assert sample.input_wait_s <= 0.0005 + 1e-9
    input_wait, exposed = clock.fractions()
    assert input_wait == pytest.approx(0.0005 / 0.13, rel=0.1)
    assert exposed == pytest.approx(0.03 / 0.13, rel=0.03)
    assert clock.steps == 40
    assert clock.stepping_s == pytest.approx(40 * 0.13, rel=0.03)


def test_a_sampled_step_that_waits_longer_than_a_mean_step_exposes_at_most_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = _machine(monkeypatch, compute_s=0.1, exposed_s=0.0, fetch_s=0.0)
    clock = _clock(machine)
    machine.run(clock, 3, exposed_s={2: 0.9})
    # A mean step takes 0.4 s; of the sampled one, 0.9 of 1.0 s are exposed.
    assert 0.9 <= (clock.fractions()[1] or 0) <= 1


def test_fetching_counts_as_waiting_where_the_engine_had_run_dry(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(monkeypatch, compute_s=0.1, exposed_s=0.0, fetch_s=0.25)
    clock = _clock(machine, every=40)
    machine.run(clock, 40, micro_batches=2)
    input_wait, _ = clock.fractions()
    # Both micro-batches of each step but the first two, over 40 steps of half a second.
    assert input_wait == pytest.approx(38 * 0.5 / clock.stepping_s)
    assert clock.stepping_s == pytest.approx(20, rel=0.02)


@pytest.mark.parametrize(("every", "first"), [(4, 2), (5, 2), (1, 0)])
def test_the_sampled_step_is_in_the_middle_of_an_interval(
    monkeypatch: pytest.MonkeyPatch, every: int, first: int
) -> None:
    machine = _machine(monkeypatch, 0.1, 0.0, 0.0)
    clock = _clock(machine, every)
    machine.run(clock, first)
    assert clock.samples == []
    clock = _clock(machine, every)
    machine.run(clock, first + 1)
    assert len(clock.samples) == 1


@pytest.mark.parametrize("every", [None, 1000])
def test_the_host_runs_two_steps_ahead_and_pauses_are_left_out(
    monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    machine = _machine(monkeypatch, 0.1, 0.0, 0.0)
    clock = Clock(cast(Engine, machine), 2, every)
    machine.now += 50
    machine.free = machine.now
    clock.start()
    machine.run(clock, 10)
    assert machine.most_ahead == 2
    machine.wait(machine.free)
    for _ in range(2):
        with clock.pause():
            machine.now += 7
    assert clock.stepping_s == pytest.approx(1.0)
    assert clock.steps == 10
