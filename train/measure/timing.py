"""A clock for steps: images/s, waiting for input, and communication that compute did not hide.

The clock changes no weight. Most steps cost two readings of the time. One step per interval
is *sampled*: the host waits until the step is done. The next step then cannot overlap with the sampled one, so exposed
communication is an upper bound if the cluster file defers reductions to the next forward.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from train.engine.protocol import Array, Engine

_DRAINED_S = 1e-4
"""If waiting for an older step took less than this, the engine had nothing left to do."""


@dataclass(frozen=True)
class StepTimes:
    """How one rank spent the time of a step, in seconds.

    Synchronous steps end together on all ranks, so a slow rank shows a *shorter* wait for communication.
    """

    compute_s: float
    comm_wait_s: float
    input_wait_s: float


class Clock:
    """Counts steps and their time, bounds how far the host runs ahead, and measures what a training run waits for.

    Args:
        engine: Waits for arrays.
        run_ahead_steps: Steps that the host may queue before it waits.
        sample_every_steps: Distance, in steps, between two steps whose communication is measured. If None, no wait is
            measured.

    Attributes:
        steps: Number of queued steps.
        samples: Times of the sampled steps.
    """

    def __init__(self, engine: Engine, run_ahead_steps: int, sample_every_steps: int | None = None) -> None:
        self._engine, self._run_ahead_steps, self._sample_every_steps = engine, run_ahead_steps, sample_every_steps
        self.steps = 0
        self.samples: list[StepTimes] = []
        self._queued: deque[Any] = deque()
        self._begin = time.perf_counter()
        self._end: float | None = None
        self._paused_s = 0.0
        self._marker: Any = None
        self._fetch_s = 0.0
        self._sampled = (0, 0.0, 0.0)
        self._input_wait_s = 0.0
        self._exposed_s = self._sampled_steps_s = 0.0
        self._exposed_now_s: float | None = None
        self._older_wait_s = 0.0

    def start(self) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock: what follows belongs to no rate."""
        self._end = time.perf_counter()

    @property
    def run_s(self) -> float:
        """Return the seconds from `start` to `stop`, or until now."""
        return (time.perf_counter() if self._end is None else self._end) - self._begin

    @property
    def stepping_s(self) -> float:
        """Return `run_s` without pauses."""
        return self.run_s - self._paused_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of the block, such as an evaluation, out of the steps' time."""
        begin = time.perf_counter()
        yield
        self._paused_s += time.perf_counter() - begin

    @contextmanager
    def input(self) -> Iterator[None]:
        """Measure the time of fetching one batch."""
        begin = time.perf_counter()
        yield
        self._fetch_s += time.perf_counter() - begin

    def first_layer_arrived(self, step: int, gradient: Array) -> None:
        """On a sampled step, queue a copy of the gradient's first element.

        Backward computes this gradient last, and the copy is queued before the reduction that overwrites the gradient.
        So backward has ended when the copy is done.
        """
        every = self._sample_every_steps
        if every is not None and step % every == every // 2:
            self._marker = self._engine.first_element(gradient)

    @contextmanager
    def reductions(self, gradients: Sequence[Array]) -> Iterator[None]:
        """On a sampled step, measure the time from the end of backward to the end of all ``gradients``' reductions.

        All of them are queued, and the block waits for them.
        """
        if self._marker is None:
            yield
            return
        begin = time.perf_counter()
        if len(self._queued) == self._run_ahead_steps:
            self._engine.wait(self._queued[0])
        self._older_wait_s = time.perf_counter() - begin
        self._engine.wait(self._marker)
        self._marker = None
        backward_end = time.perf_counter()
        yield
        self._engine.wait(*gradients)
        self._exposed_now_s = time.perf_counter() - backward_end

    def step_queued(self, loss: Array) -> None:
        """Count a queued step; wait for the step ``run_ahead_steps`` before it, which bounds queues and memory.

        Fetching a batch counts as waiting only if the engine had run out of work meanwhile: if the step
        ``run_ahead_steps`` ago is already done, nothing but the batch was missing.
        """
        begin = time.perf_counter()
        self.steps += 1
        self._queued.append(loss)
        if len(self._queued) > self._run_ahead_steps:
            self._engine.wait(self._queued.popleft())
        waited_s = self._older_wait_s + time.perf_counter() - begin
        if waited_s < _DRAINED_S and self.steps > self._run_ahead_steps:
            self._input_wait_s += self._fetch_s
        self._fetch_s = self._older_wait_s = 0.0
        if self._exposed_now_s is not None:
            self._take_sample(self._exposed_now_s)
            self._exposed_now_s = None

    def _take_sample(self, exposed_s: float) -> None:
        """Keep the times of this rank's steps since the last sample."""
        self._exposed_s += exposed_s
        # No backward pass or reduction is queued now, and none was at the last sample, so whole steps lie between them.
        now = (self.steps, self.stepping_s, self._input_wait_s)
        steps, seconds, input_wait = (end - begin for begin, end in zip(self._sampled, now, strict=True))
        self._sampled = now
        computing = max(seconds / steps - input_wait / steps - exposed_s, 0.0)
        self.samples.append(StepTimes(computing, exposed_s, input_wait / steps))
        self._sampled_steps_s += computing + exposed_s + input_wait / steps

    def fractions(self) -> tuple[float | None, float | None]:
        """Return (input wait, exposed communication) as shares of the time of steps; None where not measured.

        Both are means from `start` to `stop`. A sampled step may wait longer than a mean step takes, so its
        communication is a share of its own time.
        """
        if self._sample_every_steps is None:
            return None, None
        stepping = self.stepping_s
        if not self.steps or stepping <= 0:
            return 0.0, 0.0
        exposed = self._exposed_s / self._sampled_steps_s if self._sampled_steps_s else None
        return self._input_wait_s / stepping, exposed
