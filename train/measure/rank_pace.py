"""Ranks that become slow are named while the run goes on, from the times that all ranks exchange every few seconds.

Ranks of a synchronous run end their steps together, so only a rank's *own* time tells: the time of a step without the
wait for communication. Each rank writes its own time into its place of a vector of zeros, and the vector is summed as a
bucket of gradients is: 8 KB at 2,048 ranks. The sum is read at the end of a later interval, so that no queue of steps
runs dry.

All of it takes a rank's host 0.01 to 0.04 % of the time (rehearsed record, 4 ranks over Gloo on two busy cores, steps
of 71 and 150 ms), and up to 0.25 % where 8 ranks and 50 other processes wait for two cores. At 2,048 ranks a sum so
short is some 22 messages one after another, by estimate 0.2 ms every 3 s: less than 0.01 %.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple
from statistics import median
from typing import Any

import numpy as np

from train.comm.communicator import Communicator
from train.engine.protocol import Engine
from train.measure.timing import Clock, StepTimes

_EVERY_S = 3.0
"""Least time between two exchanges."""

_LEAST_S = 1e-6
"""A time of 0 counts as this."""

_LEAST_SAMPLES = 3
"""Least number of new samples, one an interval, whose median a rank sends. The first sample of an attempt is left out,
because its steps compile."""

_SLOW, _SLOW_NO_LONGER = 0.2, 0.1
"""Shares of a step by which a rank's own time is longer than the median rank's."""

_IN_A_ROW = 3
"""Comparisons in a row that call a rank slow, or slow no longer. Healthy ranks on two cores that 20 to 90 other
processes wanted came to a share of 0.62 in one comparison, 0.29 in two in a row and 0.22 in three, which was one of 93
(2 and 8 ranks, 2026-11-27); where 20 to 50 processes wanted them, to 0.04 in three."""


class SlowRule:
    """Decides which ranks are slow, from one comparison after another.

    Args:
        first_step: The first step of this attempt.
        world_size: Number of ranks.
    """

    def __init__(self, first_step: int, world_size: int) -> None:
        self._slow: set[int] = set()
        self._since_step = first_step
        self._past = deque([(first_step, np.zeros(world_size))] * (_IN_A_ROW + 1), _IN_A_ROW + 1)

    def compare(self, step: int, own_s: np.ndarray, step_s: float) -> dict[str, Any]:
        """Return the slow ranks, and what they cost.

        Args:
            step: The last step of the comparison.
            own_s: The own time in a step of each rank, in seconds.
            step_s: The time of a step, in seconds.

        Returns:
            ``ranks``; if there are some, also ``since_step``, ``ratio`` and ``cost_s``, see `logs.slow_ranks`.
        """
        middle = (len(own_s) - 1) // 2
        usual_s = max(float(np.partition(own_s, middle)[middle]), _LEAST_S)
        self._past.append((step, (own_s - usual_s) / max(step_s, _LEAST_S)))
        (step_before, _), *recent = self._past
        shares = np.array([share for _, share in recent])
        new = {*np.flatnonzero(shares.min(axis=0) > _SLOW).tolist()} - self._slow
        self._slow &= {*np.flatnonzero(shares.max(axis=0) > _SLOW_NO_LONGER).tolist()}
        if new:
            self._slow, self._since_step = self._slow | new, step_before
        if not self._slow:
            return {"ranks": []}
        ranks = sorted(self._slow)
        slowest_s, next_s = float(own_s[ranks].max()), float(np.delete(own_s, ranks).max(initial=usual_s))
        return {
            "ranks": ranks, "since_step": self._since_step, "ratio": slowest_s / usual_s, "cost_s": slowest_s - next_s,
        }  # fmt: skip


class RankPace:
    """Exchanges the ranks' own times at the ends of intervals, and reports the ranks that are slow.

    All ranks exchange at the same steps, because what decides when is the same on all: the number of samples, and the
    times that they have received.

    Args:
        engine: Has the vector.
        communicator: Sums it.
        clock: Has the samples; without timing there are none, and nothing is sent.
        rank: This rank.
        hosts: The host of each rank.
        first_step: The first step of this attempt.
        every_steps: Length of an interval.
        run_ahead_steps: Steps that may be queued: a sum is not read before so many more.
        report: Called with each comparison.
    """

    def __init__(  # noqa: PLR0913 (each is another part of a run)
        self, engine: Engine, communicator: Communicator, clock: Clock, *, rank: int, hosts: Sequence[str],
        first_step: int, every_steps: int, run_ahead_steps: int, report: Callable[[dict[str, Any]], None],
    ) -> None:  # fmt: skip
        self._engine, self._communicator, self._clock = engine, communicator, clock
        self._rank, self._hosts, self._report = rank, hosts, report
        self._every_steps, self._run_ahead_steps = every_steps, run_ahead_steps
        self._rule = SlowRule(first_step, len(hosts))
        self._sums = engine.zeros((len(hosts) + 1,))
        self._sent_step: int | None = None
        self._next_step, self._samples_sent = first_step, 1

    def __call__(self, step: int) -> None:
        """Read the last exchange's sum if it is surely there, and begin another exchange if it is time.

        Args:
            step: The last step of an interval.
        """
        if self._sent_step is not None and step >= self._sent_step + self._run_ahead_steps:
            self._receive(self._sent_step)
        recent = self._clock.samples[self._samples_sent :]
        if self._sent_step is None and step >= self._next_step and len(recent) >= _LEAST_SAMPLES:
            self._send(step, recent)

    def _send(self, step: int, recent: Sequence[StepTimes]) -> None:
        own = np.zeros(len(self._hosts) + 1, np.float32)
        own[self._rank] = median(each.compute_s + each.input_wait_s for each in recent)
        if self._rank == 0:
            own[-1] = median(sum(astuple(each)) for each in recent)
        self._engine.overwrite(self._sums, self._engine.from_host(own))
        self._communicator.reduce("rank_pace", [self._sums])
        # At once, so that no sum that a graph replays runs beside this one; a GPU's host does not wait here.
        self._communicator.complete()
        self._sent_step, self._samples_sent = step, len(self._clock.samples)

    def _receive(self, sent_step: int) -> None:
        *own_s, step_s = self._engine.to_host(self._sums)
        interval_s = max(float(step_s), _LEAST_S) * self._every_steps
        self._next_step, self._sent_step = sent_step + math.ceil(_EVERY_S / interval_s) * self._every_steps, None
        found = self._rule.compare(sent_step, np.array(own_s), float(step_s))
        self._report({"step": sent_step, **found, "hosts": [self._hosts[rank] for rank in found["ranks"]]})
