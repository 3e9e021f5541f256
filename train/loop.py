"""The training loop: blocks of steps, each block followed by an evaluation.

Names no launcher, rank, library or hyperparameter.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from configs.arguments import counted
from configs.blocks.training import Run
from configs.plan import BEGINNING, Position, RunPlan
from data.input.batches import TrainingSource
from logs.mlperf import EventLog
from train.checkpoint import Checkpoints
from train.comm.communicator import Communicator
from train.evaluate import Score
from train.health import require_sound
from train.measure.chance import StopRule, never_stop
from train.measure.progress import MOST_SKIPPED, LossNotFinite, LossWindow, Progress, StepLoss, Where
from train.rank.signals import RunStopped
from train.schedule import LrSchedule
from train.step import Step

_LOOK_EVERY_S = 5.0
"""Seconds after which a rank looks whether any rank was told to stop, where an interval takes longer: a scheduler may
give a job 30 s to save its state."""

_AGREE_AFTER = (2, 16)
"""Steps after which the ranks agree on the distance of two looks; the first steps are slower than the others."""


class RunFailed(RuntimeError):
    """A run that had begun cannot go on.

    Attributes:
        step: The step in which it failed.
        ranks: The ranks that differ from the others, if ``__cause__``, the reason, is a comparison of the ranks.
    """

    def __init__(self, step: int, cause: Exception) -> None:
        self.step, self.ranks = getattr(cause, "step", step), getattr(cause, "ranks", None)
        kind, text = type(cause).__name__, str(cause)
        super().__init__(text if text.startswith(kind) else f"{kind}: {text}")


@dataclass(frozen=True)
class Result:
    """How a run ended; ``failure`` is the reason if ``success`` is false."""

    success: bool
    score: Score
    epochs: int
    steps: int
    run_s: float
    failure: str | None = None


@dataclass(frozen=True)
class TrainingRun:
    """The parts of a run that do not change while it runs.

    Attributes:
        plan: Batches, steps, epochs and evaluations.
        schedule: Learning rate, momentum and weight decay of each step.
        step: One optimizer step.
        source: This rank's stream of micro-batches at the point where the run begins; it reads nothing before the first
            epoch begins.
        evaluate: Returns the score over all ranks.
        goal: The recipe's block: the target, the length of an interval, after which losses are reported, and the steps
            between two comparisons of the ranks' states, beside those before each evaluation.
        run_ahead_steps: Last steps of an interval whose losses are not read yet, because they may still be running.
        checkpoints: Keeps the state.
        stop_rule: Called after each evaluation; returns a reason to end the run early, or None.
        start: Epoch and step at which the run begins, or is resumed.
        on_break: Called before each epoch and each evaluation, which may take much longer than a step.
        on_interval: Called with the last step of each interval, on every rank.
    """

    plan: RunPlan
    schedule: LrSchedule
    step: Step
    source: TrainingSource
    evaluate: Callable[[], Score]
    goal: Run
    run_ahead_steps: int
    checkpoints: Checkpoints
    stop_rule: StopRule = never_stop
    start: Position = BEGINNING
    on_break: Callable[[], object] = lambda: None
    on_interval: Callable[[int], object] = lambda _: None


def blocks(plan: RunPlan, first_epoch: int = 1) -> list[range]:
    """Return the ranges of 1-based epochs from ``first_epoch`` on; each range ends with an evaluation."""
    ends = [end for end in plan.eval_epochs if end >= first_epoch]
    starts = (first_epoch, *(end + 1 for end in ends[:-1]))
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=True)]


def train(run: TrainingRun, *, log: EventLog, progress: Progress) -> Result:
    """Train to the target; every rank calls this at the same time.

    The clock of the run starts here. The training source reads its first byte when the first epoch begins, after
    ``run_start``. The first step is step 0. ``run_stop`` is logged exactly once, whatever happens.

    Args:
        run: The parts of the run.
        log: Receives the MLPerf events.
        progress: Receives losses and scores for metrics, lines and the progress bar.

    Raises:
        RunStopped: A rank was told to stop; the state is kept.
        RunFailed: A rank died, a batch could not be read, loss or state are not finite, the ranks' states differ, or
            the disk is full; ``run_stop`` with status aborted is logged before.
    """
    plan, step, start, goal = run.plan, run.step, run.start, run.goal
    window = LossWindow(step.engine, plan.global_batch_size)
    reached, stuck, done = False, None, max(start.step - 1, 0)
    look_every = goal.log_every_steps
    step.clock.start()
    log.emit("start", "run_start")
    try:
        for epochs in blocks(plan, start.epoch):
            losses: list[float] = []
            with log.block(epochs[0], len(epochs)):
                for epoch in epochs:
                    run.on_break()
                    with log.interval("epoch", epoch):
                        run.source.begin_epoch(epoch)
                        for done in plan.epoch_steps(epoch, start.step):
                            hyper = run.schedule.at(done)
                            window.push(done, epoch, hyper.lr, step(done, run.source, hyper))
                            if goal.compare_every_steps and (done + 1) % goal.compare_every_steps == 0:
                                require_sound(step, Position(epoch, done + 1))
                            if (done + 1) % goal.log_every_steps == 0:
                                losses += _report(run, window, progress, Position(epoch, done + 1))
                                run.on_interval(done)
                            elif (done + 1) % look_every == 0:
                                losses += _report(run, window, progress, Position(epoch, done + 1), "within")
                            if step.clock.steps in _AGREE_AFTER:
                                look_every = _steps_between_looks(run)
                losses += _report(run, window, progress, Position(epoch, done + 1), "end")
                run.on_break()
                with step.clock.pause():
                    require_sound(step, Position(epoch, done + 1))
                    with log.interval("eval", epoch):
                        begin = time.perf_counter()
                        score = run.evaluate()
                        seconds = time.perf_counter() - begin
                        log.eval_accuracy(score.value, epoch)
                progress.evaluated(epoch, done, score, seconds)
            if goal.target_top1 is not None and score.value >= goal.target_top1:
                break
            if stuck := run.stop_rule(done, score, losses):
                break
            run.checkpoints.evaluated(run.source, Position(epoch + 1, done + 1), score)
        missed = _missed(goal.target_top1, score, epoch)
        reached = missed is None
    except RunStopped:
        raise
    except Exception as error:
        raise RunFailed(done, error) from error
    finally:
        log.run_stop("success" if reached else "aborted")
        step.clock.stop()
    return Result(reached, score, epoch, done + 1, step.clock.run_s, None if reached else stuck or missed)


def _missed(target: float | None, score: Score, epochs: int) -> str | None:
    """Return why the last evaluation makes a run no success; None if it is one."""
    if target is not None and score.value < target:
        return f"target top-1 {target} not reached in {counted(epochs, 'epoch')}: last {score.value:.4f}"
    if target is not None or math.isfinite(score.row.get("eval_loss", 0.0)):
        return None
    return "the network's output is not finite in the last evaluation; train it with a smaller schedule.base_lr"


def _report(
    run: TrainingRun,
    window: LossWindow,
    progress: Progress,
    at: Position,
    where: Where = "interval's end",
) -> list[float]:
    """Read, report and return the mean losses of finished steps; stop the run here if any rank was told to stop.

    The losses of skipped steps that are not finite are left out.

    Every rank reads the same steps at the same point, so all ranks stop together.

    Raises:
        RunStopped: A rank was told to stop.
        StateNotFinite, RanksDiffer: A rank was told to stop, and the state cannot be kept.
    """
    losses = _read(window, 0 if where == "end" else run.run_ahead_steps, run.step.communicator)
    progress.steps(losses, where)
    if any(loss.ranks_stopping for loss in losses):
        progress.steps(_read(window, 0, run.step.communicator), "end")
        require_sound(run.step, at)
        run.checkpoints.stopped(run.source, at)
        raise RunStopped(at.step)
    return [loss.mean for loss in losses if loss.counts]


def _steps_between_looks(run: TrainingRun) -> int:
    """Return the steps of `_LOOK_EVERY_S`, by the slowest rank's mean step; every rank calls this after the same step.

    Reading a loss waits for a GPU's queue, so steps that are fast are looked at by intervals only.
    """
    clock = run.step.clock
    slowest_us = max(run.step.communicator.gather(f"look_{clock.steps}", int(1e6 * clock.stepping_s / clock.steps)))
    return min(run.goal.log_every_steps, max(1, int(1e6 * _LOOK_EVERY_S / max(1, slowest_us))))


def _read(window: LossWindow, keep: int, communicator: Communicator) -> list[StepLoss]:
    """Read the losses of all but the last ``keep`` queued steps; every rank reads the same steps.

    Raises:
        LossNotFinite: The summed loss of a step is not finite, and the step was not skipped, or too many steps in a row
            were skipped. Every rank sees this in the same step.
    """
    losses = window.pop(keep)
    for loss in losses:
        if loss.skipped >= MOST_SKIPPED or not (loss.skipped or math.isfinite(loss.mean)):
            flags = communicator.gather(f"loss_{loss.step}", int(loss.own_is_finite))
            ranks = [rank for rank, fine in enumerate(flags) if not fine]
            raise LossNotFinite(loss.step, ranks, loss.skipped)
    return losses
