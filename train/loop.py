"""The training loop: verbs only. It names no launcher, rank, library or hyperparameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from configs.plan import RunPlan
from data.source import TrainingSource
from logs.mlperf import EventLog
from train.comm import Communicator
from train.metric import Score
from train.progress import LossNotFinite, LossWindow, Progress, StepLoss
from train.schedule import HyperParameters, LrSchedule
from train.timing import Clock

__all__ = ["Optimizer", "Result", "Run", "RunFailed", "Step", "Trainee", "blocks", "train"]


class RunFailed(RuntimeError):
    """A run that had begun cannot go on; ``step`` says where, ``__cause__`` why."""

    def __init__(self, step: int, cause: Exception) -> None:
        self.step = getattr(cause, "step", step)
        kind, text = type(cause).__name__, str(cause)
        super().__init__(text if text.startswith(kind) else f"{kind}: {text}")


class Trainee(Protocol):
    """The network as the loop sees it."""

    gradients: Sequence[Any]

    def forward_backward(self, images: Any, labels: Any) -> Any:
        """Queue one micro-batch; gives the sum of its losses."""

    def zero_gradients(self) -> None:
        """Clear the sums of the last step."""

    def seed_dropout(self, seed: int) -> None:
        """Say what dropout draws from now on."""


class Optimizer(Protocol):
    """The optimizer as the loop sees it."""

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""

    def reset(self) -> None:
        """Forget all earlier steps."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    success: bool
    score: Score
    epochs: int
    steps: int
    run_s: float
    failure: str | None = None


@dataclass(frozen=True)
class Step:
    """One optimizer step: everything it needs, and nothing that changes.

    ``dropout_seed`` gives what the dropout of a step draws from, which makes a step independent of those before it.
    """

    network: Trainee
    optimizer: Optimizer
    communicator: Communicator
    buckets: Sequence[Sequence[int]]
    accumulation_steps: int
    clock: Clock
    alive: Callable[[], None]
    dropout_seed: Callable[[int], int] = int

    def __call__(self, step: int, source: TrainingSource, hyper: HyperParameters) -> tuple[Any, Any]:
        """Queue a step; nothing here waits for the engine.

        Returns:
            This rank's summed loss and the sum over all ranks, each an array of shape (1,).
        """
        gradients = self.network.gradients
        self.network.seed_dropout(self.dropout_seed(step))
        if self.accumulation_steps > 1:
            self.network.zero_gradients()
        own: Any = 0
        for _ in range(self.accumulation_steps):
            with self.clock.input():
                images, labels = source.next_batch()
            own = self.network.forward_backward(images, labels) + own
        self.clock.backward_queued(step, gradients)
        summed = own.copy()
        for number, bucket in enumerate(self.buckets):
            # The loss rides in the first bucket: global, and no message of its own.
            riders = [summed] if number == 0 else []
            self.communicator.reduce(f"bucket_{number}", [*(gradients[i] for i in bucket), *riders], -number)
        self.optimizer.update(hyper)
        self.communicator.exchange()
        self.clock.step_queued(summed, gradients)
        self.alive()
        return own, summed


@dataclass(frozen=True)
class Run:
    """What is run: everything that does not change while it runs.

    Attributes:
        plan: The arithmetic.
        schedule: Hyperparameters of a step.
        step: What one step does.
        open_training: Opens this rank's stream of micro-batches.
        evaluate: Gives the score over all ranks.
        target_top1: Evaluation top-1 at which the run ends with success; none: after the last epoch.
        log_every_steps: Length of an interval.
        run_ahead_steps: Steps whose losses are left unread at an interval, since they may not be over.
    """

    plan: RunPlan
    schedule: LrSchedule
    step: Step
    open_training: Callable[[], TrainingSource]
    evaluate: Callable[[], Score]
    target_top1: float | None
    log_every_steps: int
    run_ahead_steps: int


def blocks(plan: RunPlan) -> list[range]:
    """Cut a run into ranges of 1-based epochs, each ending with an evaluation."""
    ends = plan.eval_epochs
    starts = (1, *(end + 1 for end in ends[:-1]))
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=True)]


def train(run: Run, *, log: EventLog, progress: Progress) -> Result:
    """Train to the target; every rank calls this at the same time.

    The clock of the run starts here, and the training source is opened after it started: no training byte is read
    before ``run_start``. Step 0 is the first; ``run_stop`` is written exactly once, whatever happens.

    Args:
        run: What is run.
        log: MLPerf events.
        progress: Lines, metrics, bar.

    Raises:
        RunFailed: A rank died, a batch could not be read, the loss is not finite, the disk is full; ``run_stop``
            aborted is logged before.
    """
    plan, step = run.plan, run.step
    window = LossWindow(plan.global_batch_size)
    reached, done = False, 0
    log.run_start()
    step.clock.start()
    begin = time.perf_counter()
    try:
        source = run.open_training()
        for epochs in blocks(plan):
            with log.block(epochs[0], len(epochs)):
                for epoch in epochs:
                    with log.epoch(epoch):
                        source.begin_epoch(epoch)
                        for done in plan.epoch_steps(epoch):
                            hyper = run.schedule.at(done)
                            window.push(done, epoch, hyper.lr, *step(done, source, hyper))
                            if (done + 1) % run.log_every_steps == 0:
                                progress.steps(_read(window, run.run_ahead_steps, step.communicator))
                progress.steps(_read(window, 0, step.communicator), is_last=True)
                with log.evaluation(epoch), step.clock.pause():
                    score, seconds = _timed(run.evaluate)
                    log.eval_accuracy(score.value, epoch)
                progress.evaluated(epoch, done, score, seconds)
            if run.target_top1 is not None and score.value >= run.target_top1:
                break
        reached = run.target_top1 is None or score.value >= run.target_top1
    except Exception as error:
        raise RunFailed(done, error) from error
    finally:
        log.run_stop("success" if reached else "aborted")
    missed = (
        None if reached else f"target top-1 {run.target_top1} not reached in {epoch} epochs: last {score.value:.4f}"
    )
    return Result(reached, score, epoch, done + 1, time.perf_counter() - begin, missed)


def _timed(evaluate: Callable[[], Score]) -> tuple[Score, float]:
    begin = time.perf_counter()
    score = evaluate()
    return score, time.perf_counter() - begin


def _read(window: LossWindow, keep: int, communicator: Communicator) -> list[StepLoss]:
    """Read losses that are due; every rank reads the same steps, so all of them see a bad one."""
    losses = window.pop(keep)
    for loss in losses:
        if not math.isfinite(loss.mean):
            flags = communicator.gather(f"loss_{loss.step}", int(loss.own_is_finite))
            raise LossNotFinite(loss.step, [rank for rank, fine in enumerate(flags) if not fine])
    return losses
