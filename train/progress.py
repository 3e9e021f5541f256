"""What a run tells while it goes: losses read late, a metrics row and a line an interval, a progress bar."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from logs.metrics import Metrics
from train.timing import StepClock

__all__ = ["LossNotFinite", "LossWindow", "Progress"]

logger = logging.getLogger(__name__)


class LossNotFinite(RuntimeError):
    """The loss of a step is infinite or not a number; ``step`` says which."""

    def __init__(self, step: int, ranks: Sequence[int]) -> None:
        self.step, self.ranks = step, tuple(ranks)
        super().__init__(f"loss not finite at step {step}, first on rank {', '.join(map(str, self.ranks))}")


class LossWindow:
    """Losses of queued steps, read only when their steps are surely over, so that no step waits for the host."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self._queued: deque[tuple[int, Any, Any]] = deque()

    def push(self, step: int, own: Any, summed: Any) -> None:
        """Keep a step's losses, arrays of shape (1,): this rank's sum, and the sum over all ranks."""
        self._queued.append((step, own, summed))

    def pop(self, keep: int) -> list[tuple[int, float, bool]]:
        """Read all but the last ``keep`` steps: (step, mean loss over the global batch, own loss is finite)."""
        rows = []
        while len(self._queued) > keep:
            step, own, summed = self._queued.popleft()
            mean = float(summed.asscalar()) / self._global_batch_size
            rows.append((step, mean, math.isfinite(mean) or math.isfinite(float(own.asscalar()))))
        return rows


class Progress:
    """Report a run's steps on one rank; quiet ranks pass a null metrics writer and ``visible=False``.

    Args:
        metrics: Takes a row an interval and one an evaluation.
        clock: Read for rates and shares.
        global_batch_size: Images a step.
        total_steps: Length of the bar.
        visible: Show the bar and the lines.
    """

    def __init__(
        self, metrics: Metrics, clock: StepClock, *, global_batch_size: int, total_steps: int, visible: bool
    ) -> None:
        self._metrics, self._clock = metrics, clock
        self._global_batch_size = global_batch_size
        self._visible = visible
        self._total_steps = total_steps
        self._top1: float | None = None
        self._last = (0, 0.0)
        self._bar = tqdm(total=total_steps, unit="step", disable=None if visible else True, leave=False)

    def interval(self, epoch: int, losses: Sequence[tuple[int, float]], lr: float) -> None:
        """Report steps read since the last time: (step, mean loss); ``lr`` is the last one's."""
        if not losses:
            return
        step, loss = losses[-1][0], sum(each[1] for each in losses) / len(losses)
        stepping = self._clock.stepping_s
        steps, seconds = step + 1 - self._last[0], stepping - self._last[1]
        self._last = (step + 1, stepping)
        rate = steps * self._global_batch_size / seconds if seconds > 0 else 0.0
        input_wait, exposed = self._clock.fractions()
        self._metrics.row(
            kind="interval", step=step, epoch=epoch, loss=loss, lr=lr, images_per_s=rate, time=time.time(),
            input_wait_fraction=input_wait, comm_exposed_fraction=exposed,
        )  # fmt: skip
        self._bar.update(step + 1 - self._bar.n)
        if not self._visible:
            return
        left = (self._total_steps - step - 1) * stepping / (step + 1)
        top1 = "-" if self._top1 is None else f"{self._top1:.4f}"
        self._say(
            "epoch %d step %d/%d  %.0f images/s  loss %.4f  lr %.4g  top-1 %s  at most %s left",
            epoch, step + 1, self._total_steps, rate, loss, lr, top1, _duration(left),
        )  # fmt: skip

    def evaluated(self, epoch: int, step: int, correct: int, total: int, seconds: float) -> None:
        """Report an evaluation."""
        self._top1 = correct / total
        self._metrics.row(
            kind="evaluation", step=step, epoch=epoch, top1=self._top1, correct=correct, total=total,
            seconds=seconds, time=time.time(),
        )  # fmt: skip
        self._metrics.flush()
        if self._visible:
            self._say("epoch %d  top-1 %.4f (%d of %d) in %.2f s", epoch, self._top1, correct, total, seconds)

    def _say(self, text: str, *values: object) -> None:
        self._bar.clear()
        logger.info(text, *values)
        self._bar.refresh()

    def close(self) -> None:
        """Take the bar away and write what is left."""
        self._bar.close()
        self._metrics.close()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
