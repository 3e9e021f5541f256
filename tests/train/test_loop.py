"""The order of events in a run, with a network that computes nothing and a log that remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import pytest

from configs.load import load_recipe
from configs.plan import RunPlan, plan_run
from data.source import Batch
from logs.events import EventLog, Kind
from logs.metrics import NullMetrics
from train.comm import SingleProcess
from train.loop import Result, Run, RunFailed, Step, blocks, train
from train.metric import top1_score
from train.progress import LossNotFinite, Progress
from train.schedule import HyperParameters, resolve_schedule
from train.timing import StepClock


class RememberingLog(EventLog):
    def __init__(self) -> None:
        self.keys: list[str] = []

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        self.keys.append(f"{key} {metadata['status']}" if "status" in metadata else key)

    def close(self) -> None:
        pass


class Blank:
    """A network, an optimizer and a source in one; counts what it is asked for."""

    def __init__(self, log: RememberingLog, *, bad_step: int | None = None, fails_at: int | None = None) -> None:
        self.gradients: Sequence[Any] = [mx.nd.zeros((2,)), mx.nd.zeros((3,))]
        self.log, self.bad_step, self.fails_at = log, bad_step, fails_at
        self.batches = self.cleared = 0
        self.rates: list[float] = []
        self.seeds: list[int] = []
        self.epochs: list[int] = []

    def open(self) -> Blank:
        self.log.keys.append("opened")
        return self

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def next_batch(self) -> Batch:
        if self.batches == self.fails_at:
            raise OSError("record 7 is torn")
        self.batches += 1
        return Batch(None, None)

    def close(self) -> None:
        pass

    def forward_backward(self, _images: Any, _labels: Any) -> Any:
        return mx.nd.array([float("nan") if self.batches - 1 == self.bad_step else 64.0])

    def zero_gradients(self) -> None:
        self.cleared += 1

    def seed_dropout(self, seed: int) -> None:
        self.seeds.append(seed)

    def update(self, hyper: HyperParameters) -> None:
        self.rates.append(hyper.lr)

    def reset(self) -> None:
        pass


def _run(blank: Blank, log: RememberingLog, overrides: list[str], tops: list[int]) -> tuple[Result, RunPlan]:
    recipe = load_recipe("digits", ["run.epochs=4", "run.log_every_steps=5", *overrides])
    plan = plan_run(recipe, 1)
    clock = StepClock(2, 5)
    step = Step(blank, blank, SingleProcess(), [[1], [0]], plan.accumulation_steps, clock, alive=lambda: None)
    answers = iter(tops)
    progress = Progress(NullMetrics(), clock, global_batch_size=64, total_steps=plan.total_steps,
                        every_steps=5, visible=False)  # fmt: skip
    run = Run(
        plan=plan, schedule=resolve_schedule(recipe, plan), step=step, open_training=blank.open,
        evaluate=lambda: top1_score(next(answers), 100), target_top1=recipe.run.target_top1,
        log_every_steps=5, run_ahead_steps=2,
    )  # fmt: skip
    result = train(run, log=log, progress=progress)
    return result, plan


def test_a_run_to_its_target_logs_every_interval_in_order() -> None:
    log = RememberingLog()
    blank = Blank(log)
    result, plan = _run(blank, log, [], [50, 97])
    epochs = ["epoch_start", "epoch_stop"] * 2
    evaluation = ["eval_start", "eval_accuracy", "eval_stop"]
    block = ["block_start", *epochs, *evaluation, "block_stop"]
    assert log.keys == ["run_start", "opened", *block, *block, "run_stop success"]
    assert (result.success, result.score.value, result.epochs, result.steps) == (True, 0.97, 4, plan.total_steps)
    assert blank.epochs == [1, 2, 3, 4]
    assert blank.batches == plan.total_steps


def test_the_target_ends_the_run_at_once() -> None:
    log = RememberingLog()
    result, plan = _run(Blank(log), log, [], [97])
    assert (result.epochs, result.steps) == (2, plan.steps_after(2))


def test_a_missed_target_is_aborted_and_says_by_how_much() -> None:
    log = RememberingLog()
    result, _ = _run(Blank(log), log, [], [50, 60])
    assert log.keys[-1] == "run_stop aborted"
    assert result.failure == "target top-1 0.97 not reached in 4 epochs: last 0.6000"


def test_without_a_target_the_last_epoch_is_success() -> None:
    log = RememberingLog()
    result, _ = _run(Blank(log), log, ["run.target_top1=null"], [1, 2])
    assert result.success


def test_accumulation_takes_as_many_batches_and_one_update() -> None:
    log = RememberingLog()
    blank = Blank(log)
    result, plan = _run(blank, log, ["batch.accumulation_steps=4"], [97])
    assert blank.batches == 4 * result.steps
    assert len(blank.rates) == blank.cleared == result.steps
    assert blank.seeds == list(range(result.steps))
    assert plan.per_rank_batch_size == 16


def test_a_loss_that_is_not_finite_aborts_with_step_and_rank() -> None:
    log = RememberingLog()
    with pytest.raises(RunFailed, match="loss not finite at step 7, first on rank 0") as caught:
        _run(Blank(log, bad_step=7), log, [], [])
    assert isinstance(caught.value.__cause__, LossNotFinite)
    assert caught.value.step == 7
    assert log.keys[-1] == "run_stop aborted"
    assert "eval_start" not in log.keys


def test_a_batch_that_cannot_be_read_aborts_with_its_step() -> None:
    log = RememberingLog()
    with pytest.raises(RunFailed, match="OSError: record 7 is torn") as caught:
        _run(Blank(log, fails_at=3), log, [], [])
    assert caught.value.step == 3
    assert log.keys[-1] == "run_stop aborted"


def test_blocks_cover_all_epochs_and_end_with_evaluations() -> None:
    plan = plan_run(load_recipe("digits", ["run.epochs=7", "run.eval_every_epochs=3", "run.eval_first_epoch=2"]), 1)
    assert blocks(plan) == [range(1, 3), range(3, 6), range(6, 8)]
