"""The training loop: verbs only. It names no launcher, rank, library or hyperparameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from configs.plan import BEGINNING, Position, RunPlan
from data.input.batches import TrainingSource
from logs.mlperf import EventLog
from train.checkpoint import Keeper, NoCheckpoints
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.measure.chance import Judge, never_stuck
from train.measure.progress import LossNotFinite, LossWindow, Progress, StepArrays, StepLoss
from train.measure.timing import Clock
from train.metric import Score
from train.rank.signals import RunStopped
from train.schedule import HyperParameters, LrSchedule

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

    ``dropout_seed`` gives what the dropout of a step draws from, which makes a step independent of those before it;
    ``told_to_stop`` says whether this rank was.
    """

    network: Trainee
    optimizer: Optimizer
    communicator: Communicator
    buckets: BucketPlan
    accumulation_steps: int
    clock: Clock
    alive: Callable[[int], object]
    dropout_seed: Callable[[int], int] = int
    told_to_stop: Callable[[], bool] = bool

    def __call__(self, step: int, source: TrainingSource, hyper: HyperParameters) -> StepArrays:
        """Queue a step; nothing here waits for the engine."""
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
        summed, stops = own.copy(), own.ones_like() if self.told_to_stop() else own.zeros_like()
        turn = own.zeros_like() if self.buckets.num_deferred else None
        for number, bucket in enumerate(self.buckets.order):
            # Loss and wish to stop ride in the first bucket: global, and no message of their own.
            riders = [summed, stops] if number == 0 else []
            if turn is not None and number >= self.buckets.last_prompt:
                # Riding in all of these, it keeps them one after another: the engine sees that each changes it.
                riders.append(turn)
            self.communicator.reduce(f"bucket_{number}", [*(gradients[i] for i in bucket), *riders], -number)
        self.optimizer.update(hyper)
        self.communicator.exchange()
        self.clock.step_queued(summed, gradients)
        self.alive(step)
        return StepArrays(own, summed, stops)


@dataclass(frozen=True)
class Run:
    """What is run: everything that does not change while it runs.

    Attributes:
        plan: The arithmetic.
        schedule: Hyperparameters of a step.
        step: What one step does.
        open_training: Opens this rank's stream of micro-batches, where the run begins.
        evaluate: Gives the score over all ranks.
        target_top1: Evaluation top-1 at which the run ends with success; none: after the last epoch.
        log_every_steps: Length of an interval.
        run_ahead_steps: Steps whose losses are left unread at an interval, since they may not be over.
        judge: Told of each evaluation; says why going on is of no use, where it is not.
        checkpoints: Keeps the state.
        start: Where the run begins, or goes on.
    """

    plan: RunPlan
    schedule: LrSchedule
    step: Step
    open_training: Callable[[], TrainingSource]
    evaluate: Callable[[], Score]
    target_top1: float | None
    log_every_steps: int
    run_ahead_steps: int
    judge: Judge = never_stuck
    checkpoints: Keeper = field(default_factory=NoCheckpoints)
    start: Position = BEGINNING


def blocks(plan: RunPlan, first_epoch: int = 1) -> list[range]:
    """Cut what is left of a run into ranges of 1-based epochs, each ending with an evaluation."""
    ends = [end for end in plan.eval_epochs if end >= first_epoch]
    starts = (first_epoch, *(end + 1 for end in ends[:-1]))
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
        RunStopped: A rank was told to stop, and the state is kept.
        RunFailed: A rank died, a batch could not be read, the loss is not finite, the disk is full; ``run_stop``
            aborted is logged before.
    """
    plan, step, start = run.plan, run.step, run.start
    window = LossWindow(plan.global_batch_size)
    reached, stuck, done = False, None, max(start.step - 1, 0)
    log.run_start()
    step.clock.start()
    begin = time.perf_counter()
    try:
        source = run.open_training()
        for epochs in blocks(plan, start.epoch):
            with log.block(epochs[0], len(epochs)):
                for epoch in epochs:
                    with log.epoch(epoch):
                        source.begin_epoch(epoch)
                        for done in plan.epoch_steps(epoch, start.step):
                            hyper = run.schedule.at(done)
                            window.push(done, epoch, hyper.lr, step(done, source, hyper))
                            if (done + 1) % run.log_every_steps == 0:
                                _report(run, window, progress, source, Position(epoch, done + 1))
                _report(run, window, progress, source, Position(epoch, done + 1), is_last=True)
                with log.evaluation(epoch), step.clock.pause():
                    score, seconds = _timed(run.evaluate)
                    log.eval_accuracy(score.value, epoch)
                progress.evaluated(epoch, done, score, seconds)
            if run.target_top1 is not None and score.value >= run.target_top1:
                break
            if stuck := run.judge(done, score):
                break
            run.checkpoints.evaluated(source, Position(epoch + 1, done + 1))
        reached = run.target_top1 is None or score.value >= run.target_top1
    except RunStopped:
        raise
    except Exception as error:
        raise RunFailed(done, error) from error
    finally:
        log.run_stop("success" if reached else "aborted")
    missed = f"target top-1 {run.target_top1} not reached in {epoch} epochs: last {score.value:.4f}"
    return Result(reached, score, epoch, done + 1, time.perf_counter() - begin, None if reached else stuck or missed)


def _timed(evaluate: Callable[[], Score]) -> tuple[Score, float]:
    begin = time.perf_counter()
    score = evaluate()
    return score, time.perf_counter() - begin


def _report(
    run: Run, window: LossWindow, progress: Progress, source: TrainingSource, at: Position, *, is_last: bool = False
) -> None:  # fmt: skip
    """Read losses that are due and tell them; stop here if any rank was told to.

    Every rank reads the same steps at the same place, so all of them stop, and at an interval's end: what is told of
    intervals is the same with and without a stop.
    """
    losses = _read(window, 0 if is_last else run.run_ahead_steps, run.step.communicator)
    progress.steps(losses, is_last=is_last)
    if any(loss.ranks_stopping for loss in losses):
        progress.steps(_read(window, 0, run.step.communicator))
        run.checkpoints.stopped(source, at)
        raise RunStopped(at.step)


def _read(window: LossWindow, keep: int, communicator: Communicator) -> list[StepLoss]:
    """Read losses that are due; every rank reads the same steps, so all of them see a bad one."""
    losses = window.pop(keep)
    for loss in losses:
        if not math.isfinite(loss.mean):
            flags = communicator.gather(f"loss_{loss.step}", int(loss.own_is_finite))
            raise LossNotFinite(loss.step, [rank for rank, fine in enumerate(flags) if not fine])
    return losses
