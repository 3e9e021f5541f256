"""Reporting a run while it trains: losses read late, a metrics row and a line per interval, a progress bar."""

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from tqdm import tqdm

from configs.arguments import duration
from logs.metrics import NullMetrics
from logs.slow_ranks import SLOW_RANKS, name_ranks, slow_words
from train.engine.protocol import Engine
from train.evaluate import Score
from train.measure.timing import Clock
from train.step import StepArrays

logger = logging.getLogger(__name__)


MOST_SKIPPED = 10
"""Steps in a row that may be skipped because float16 overflowed."""


HOW_TO_GO_ON = (
    "; --resume goes on from the last checkpoint, if there is one; if this happens again, lower schedule.base_lr"
)
"""What to do about values that are not finite: once they may come from the machine, a second time from the recipe."""


class LossNotFinite(RuntimeError):
    """The loss of ``step`` is infinite or not a number; ``ranks`` had such a loss of their own images.

    Args:
        step: The step.
        ranks: The ranks.
        skipped: Steps in a row, up to this one, whose update was skipped.
    """

    def __init__(self, step: int, ranks: Sequence[int], skipped: int = 0) -> None:
        self.step, self.ranks = step, tuple(ranks)
        if skipped:
            text = f"gradients or loss not finite at step {step}: float16 overflowed in {skipped} steps in a row; "
            super().__init__(f"{text}set cluster.engine.precision=bfloat16, or a lower schedule.base_lr")
        else:
            super().__init__(
                f"loss not finite at step {step}, first on rank {', '.join(map(str, self.ranks))}{HOW_TO_GO_ON}"
            )


@dataclass(frozen=True)
class StepLoss:
    """A finished step.

    Attributes:
        step: Its number, from 0.
        epoch: Its epoch, from 1.
        lr: Its learning rate.
        mean: The mean loss over the global batch; may not be finite.
        own_is_finite: Whether the loss of this rank's images was finite.
        ranks_stopping: Number of ranks that were told to stop.
        skipped: Steps in a row, up to this one, whose update was skipped; 0 if this one's was not.
    """

    step: int
    epoch: int
    lr: float
    mean: float
    own_is_finite: bool
    ranks_stopping: int
    skipped: int = 0

    @property
    def counts(self) -> bool:
        """Return whether the loss belongs into means: not if it is that of a skipped step and not finite."""
        return not self.skipped or math.isfinite(self.mean)


Where = Literal["within", "interval's end", "end"]
"""A point of a run at which losses are read: within an interval, at its end, or at that of a block or a run."""


class LossWindow:
    """Losses of queued steps, read only when the steps are surely done, so that no step waits for the host.

    Args:
        engine: Reads the arrays.
        global_batch_size: Images per step.
    """

    def __init__(self, engine: Engine, global_batch_size: int) -> None:
        self._engine, self._global_batch_size = engine, global_batch_size
        self._queued: deque[tuple[int, int, float, StepArrays]] = deque()
        self._skipped = 0

    def push(self, step: int, epoch: int, lr: float, arrays: StepArrays) -> None:
        """Keep the arrays of a queued step."""
        self._queued.append((step, epoch, lr, arrays))

    def pop(self, keep: int) -> list[StepLoss]:
        """Return the losses of all but the last ``keep`` steps, and forget those steps; waits for them."""
        steps = [self._queued.popleft() for _ in range(len(self._queued) - keep)]
        if not steps:
            return []
        # A read of a GPU waits for all that is queued, so there is one for all steps.
        columns = 3 if steps[0][-1].skipped is None else 4
        numbers = iter(self._engine.to_numbers([each for *_, arrays in steps for each in arrays[:columns]]))
        rows = []
        for step, epoch, lr, _ in steps:
            own, summed, stops, *skips = islice(numbers, columns)
            self._skipped = self._skipped + 1 if any(skips) else 0
            mean, is_finite = summed / self._global_batch_size, math.isfinite(own)
            rows.append(StepLoss(step, epoch, lr, mean, is_finite, int(stops), self._skipped))
        return rows


class Progress:
    """Report a run's steps on one rank; quiet ranks pass a null metrics writer and ``visible=False``.

    Args:
        metrics: Receives a row per interval and a row per evaluation.
        clock: Has the rates and the shares of waiting.
        global_batch_size: Images per step.
        total_steps: Length of the progress bar.
        every_steps: Length of an interval.
        visible: Whether to show the bar and the lines.
    """

    def __init__(
        self, metrics: NullMetrics, clock: Clock, *,
        global_batch_size: int, total_steps: int, every_steps: int, visible: bool,
    ) -> None:  # fmt: skip
        self._metrics, self._clock = metrics, clock
        self._global_batch_size, self._total_steps, self._every_steps = global_batch_size, total_steps, every_steps
        self._visible = visible
        self._score: Score | None = None
        self._compared: Mapping[str, Any] = {}
        self._interval: list[StepLoss] = []
        self._measured, self._rate = (0, 0.0), 0.0
        self._rates: deque[float] = deque()  # of intervals whose losses are not read yet
        self._bar = tqdm(
            total=total_steps, disable=None if visible else True, leave=False, dynamic_ncols=True,
            bar_format="{percentage:3.0f}% |{bar:8}| {desc}",
        )  # fmt: skip

    def steps(self, losses: Sequence[StepLoss], at: Where = "interval's end") -> None:
        """Add finished steps and report each completed interval; at the ``end`` also one that is cut short."""
        queued, seconds = self._clock.steps - self._measured[0], self._clock.stepping_s - self._measured[1]
        if at != "within" and queued:
            self._rates.append(queued * self._global_batch_size / seconds)
            self._measured = (self._clock.steps, self._clock.stepping_s)
        for loss in losses:
            self._interval.append(loss)
            if loss.skipped and self._visible:
                self._say("step %d/%d: float16 overflow, the update was skipped", loss.step + 1, self._total_steps)
            if (loss.step + 1) % self._every_steps == 0:
                self._report()
        if at == "end" and self._interval:
            self._report()

    def _report(self) -> None:
        last, means = self._interval[-1], [each.mean for each in self._interval if each.counts]
        loss = sum(means) / len(means) if means else math.nan
        skipped = sum(1 for each in self._interval if each.skipped)
        self._interval = []
        if self._rates:
            self._rate = self._rates.popleft()
        input_wait, exposed = self._clock.fractions()
        self._metrics.row(
            kind="interval", step=last.step, epoch=last.epoch, loss=loss, lr=last.lr, images_per_s=self._rate,
            time=time.time(), input_wait_fraction=input_wait, comm_exposed_fraction=exposed,
            **({"skipped_steps": skipped} if skipped else {}),
        )  # fmt: skip
        self._bar.update(last.step + 1 - self._bar.n)
        if not self._visible:
            return
        left = (self._total_steps - last.step - 1) * self._clock.stepping_s / self._clock.steps
        score = "" if self._score is None else f"  {self._score}"
        if not self._bar.disable:
            # A terminal shows one line that changes; what matters most stands first, because tqdm cuts the line off.
            words = f"{last.step + 1}/{self._total_steps} loss {loss:.3f} {_rounded(self._rate)} images/s"
            self._bar.set_description_str(f"{words} {duration(left)} left{score[1:]}")
            return
        self._say(
            "epoch %d step %d/%d  %s images/s  loss %.4f  lr %.4g%s  at most %s left",
            last.epoch, last.step + 1, self._total_steps, _rounded(self._rate), loss, last.lr, score, duration(left),
        )  # fmt: skip

    def evaluated(self, epoch: int, step: int, score: Score, seconds: float) -> None:
        """Report an evaluation."""
        self._score = score
        self._metrics.row(kind="evaluation", step=step, epoch=epoch, **score.row, seconds=seconds, time=time.time())
        self._metrics.flush()
        if self._visible:
            loss = "" if (value := score.row.get("eval_loss")) is None else f", validation loss {value:.4f}"
            self._say("epoch %d  %s (%s)%s in %.2f s", epoch, score, score.basis, loss, seconds)

    def compared(self, found: Mapping[str, Any]) -> None:
        """Report a comparison of the ranks; a line tells when a rank becomes slow, and when it is slow no longer.

        Args:
            found: The values of a row of kind `logs.slow_ranks.SLOW_RANKS`.
        """
        is_first, before, self._compared = not self._compared, self._compared or {"ranks": []}, found
        if is_first or found["ranks"] or before["ranks"]:
            self._metrics.row(kind=SLOW_RANKS, **found, time=time.time())
        if found["ranks"] == before["ranks"]:
            return
        self._metrics.flush()
        if self._visible:
            words = slow_words([found]) or f"no longer slow: {name_ranks(before['ranks'], before['hosts'])}"
            self._say("%s", words, level=logging.WARNING)

    def _say(self, text: str, *values: object, level: int = logging.INFO) -> None:
        self._bar.clear()
        logger.log(level, text, *values)
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar and write the remaining metrics."""
        self._bar.close()
        self._metrics.flush()


def _rounded(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"  # noqa: PLR2004
