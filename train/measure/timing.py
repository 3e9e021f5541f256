"""A clock for steps: images a second, waiting for input, communication that compute did not hide.

It only looks: switching it off (`NoClock`) cannot change a weight. Most steps cost it two readings of the time; one
step an interval is *sampled*, which means that the host waits for it. The next step cannot hide anything of a sampled
one: where the cluster file defers reductions to the next forward, exposed communication is an upper bound.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Clock", "NoClock", "StepClock", "StepTimes"]

_DRAINED_S = 1e-4
"""A wait for an older step shorter than this found the engine with nothing left to do."""


@dataclass(frozen=True)
class StepTimes:
    """Where one rank's time of a step went, in seconds.

    All ranks take equally long for a step: one that computes longer than the others waits less for them.
    """

    compute_s: float
    comm_wait_s: float
    input_wait_s: float


class Clock(Protocol):
    """What the loop tells a clock, and what it tells back."""

    steps: int
    samples: list[StepTimes]

    @property
    def stepping_s(self) -> float:
        """Seconds since the start, pauses left out."""

    def fractions(self) -> tuple[float | None, float | None]:
        """Give (input wait, exposed communication) as shares of the time spent stepping; None: not measured."""

    def start(self) -> None:
        """Tell that the run starts now."""

    def input(self) -> Any:
        """Give a context that surrounds fetching a batch."""

    def backward_queued(self, step: int, gradients: Sequence[Any]) -> None:
        """Tell that the backward pass of ``step`` is queued, its reductions are not."""

    def step_queued(self, loss: Any, gradients: Sequence[Any]) -> None:
        """Tell that a whole step is queued; waits when the host runs too far ahead."""

    def pause(self) -> Any:
        """Give a context whose time belongs to no step, such as an evaluation."""


class NoClock:
    """The null twin: counts steps and their time, and keeps the host from running too far ahead."""

    def __init__(self, run_ahead_steps: int) -> None:
        self.steps = 0
        self.samples: list[StepTimes] = []
        self._run_ahead_steps = run_ahead_steps
        self._queued: deque[Any] = deque()
        self._begin = time.perf_counter()
        self._paused_s = 0.0

    def start(self) -> None:
        """Begin to count."""
        self._begin = time.perf_counter()

    @property
    def stepping_s(self) -> float:
        """Seconds since the start, pauses left out."""
        return time.perf_counter() - self._begin - self._paused_s

    def fractions(self) -> tuple[float | None, float | None]:
        """Say that neither is measured."""
        return None, None

    @contextmanager
    def input(self) -> Iterator[None]:
        """Time nothing."""
        yield

    def backward_queued(self, step: int, gradients: Sequence[Any]) -> None:
        """Do nothing."""

    def step_queued(self, loss: Any, gradients: Sequence[Any]) -> None:
        """Wait for the step ``run_ahead_steps`` before this one, so that queues and memory stay bounded."""
        self.steps += 1
        self._queued.append(loss)
        if len(self._queued) > self._run_ahead_steps:
            self._queued.popleft().wait_to_read()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave an evaluation out of the steps' time."""
        begin = time.perf_counter()
        yield
        self._paused_s += time.perf_counter() - begin


class StepClock(NoClock):
    """Measure a run as it goes.

    Args:
        run_ahead_steps: Steps that the host may queue before it waits.
        sample_every_steps: How often a step's communication is measured.
    """

    def __init__(self, run_ahead_steps: int, sample_every_steps: int) -> None:
        super().__init__(run_ahead_steps)
        self._sample_every_steps = sample_every_steps
        self._marker: Any = None
        self._fetch_s = 0.0
        self._sampled = (0, 0.0, 0.0)
        self._input_wait_s = 0.0
        self._exposed_s = 0.0

    @contextmanager
    def input(self) -> Iterator[None]:
        """Time fetching one batch."""
        begin = time.perf_counter()
        yield
        self._fetch_s += time.perf_counter() - begin

    def backward_queued(self, step: int, gradients: Sequence[Any]) -> None:
        """On sampled steps, queue a copy of one number of the first layer's gradient.

        That gradient is the last that backward makes, and the copy is queued before the reduction that overwrites
        it: when the copy is there, backward has ended.
        """
        if step % self._sample_every_steps == self._sample_every_steps // 2:
            self._marker = gradients[0].reshape(-1)[:1].copy()

    def step_queued(self, loss: Any, gradients: Sequence[Any]) -> None:
        """Count the step, and say whether its input was waited for.

        Fetching counts as waiting only where the engine had run dry meanwhile: where nothing is left to wait for
        of the step ``run_ahead_steps`` ago, the fetch was what everyone waited for.
        """
        begin = time.perf_counter()
        super().step_queued(loss, gradients)
        if time.perf_counter() - begin < _DRAINED_S and self.steps > self._run_ahead_steps:
            self._input_wait_s += self._fetch_s
        self._fetch_s = 0.0
        if self._marker is not None:
            self._sample_communication(gradients)

    def _sample_communication(self, gradients: Sequence[Any]) -> None:
        self._marker.wait_to_read()
        self._marker = None
        backward_end = time.perf_counter()
        for gradient in gradients:
            gradient.wait_to_read()
        exposed = time.perf_counter() - backward_end
        self._exposed_s += exposed
        # Nothing is queued now, nor was at the last sample: between them lie whole steps.
        now = (self.steps, self.stepping_s, self._input_wait_s)
        steps, seconds, input_wait = (end - begin for begin, end in zip(self._sampled, now, strict=True))
        self._sampled = now
        computing = max(seconds / steps - input_wait / steps - exposed, 0.0)
        self.samples.append(StepTimes(computing, exposed, input_wait / steps))

    def fractions(self) -> tuple[float | None, float | None]:
        """Give both, so far."""
        stepping = self.stepping_s
        if not self.steps or stepping <= 0:
            return 0.0, 0.0
        step_s = stepping / self.steps
        exposed = self._exposed_s / (len(self.samples) * step_s) if self.samples else 0.0
        return self._input_wait_s / stepping, exposed
