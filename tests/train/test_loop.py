"""The order of events in a run, with a network that computes nothing and a log that remembers."""

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from configs.load import load_recipe
from configs.plan import Position, RunPlan, plan_run
from logs.metrics import NullMetrics
from logs.mlperf import EventLog, Kind
from tests.dry_loop import Blank, NumberEngine, dry_train
from train.engine.protocol import Engine
from train.evaluate import Score
from train.loop import Result, RunFailed, blocks
from train.measure.progress import LossNotFinite
from train.measure.timing import Clock
from train.rank.signals import RunStopped


class RememberingLog(EventLog):
    def __init__(self) -> None:
        self.keys: list[str] = []

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        self.keys.append(f"{key} {metadata['status']}" if "status" in metadata else key)

    def close(self) -> None:
        pass


class Remembered(Blank):
    """Tells the log when its first epoch begins, before which a source reads nothing."""

    def __init__(self, log: RememberingLog, **faults: Any) -> None:
        super().__init__(**faults)
        self._log = log

    def begin_epoch(self, epoch: int) -> None:
        if epoch == 1:
            self._log.keys.append("reading begins")
        super().begin_epoch(epoch)


SHORT = [
    "run.epochs=4", "run.log_every_steps=5", "run.eval_every_epochs=2", "run.eval_first_epoch=2",
    "data.eval_samples=100",
]  # fmt: skip
"""Two blocks of two epochs."""


def _run(
    blank: Blank, log: RememberingLog, overrides: list[str], tops: list[float], **changes: Any
) -> tuple[Result, RunPlan]:  # fmt: skip
    recipe = load_recipe("digits", [*SHORT, *overrides])
    return dry_train(recipe, 1, tops, log=log, blank=blank, metrics=NullMetrics(), **changes)


def test_a_run_to_its_target_logs_every_interval_in_order() -> None:
    log = RememberingLog()
    blank = Remembered(log)
    result, plan = _run(blank, log, [], [0.5, 0.97])
    epochs = ["epoch_start", "epoch_stop"] * 2
    evaluation = ["eval_start", "eval_accuracy", "eval_stop"]
    block = ["block_start", *epochs, *evaluation, "block_stop"]
    first_block = ["block_start", "epoch_start", "reading begins", *block[2:]]
    assert log.keys == ["run_start", *first_block, *block, "run_stop success"]
    assert (result.success, result.score.value, result.epochs, result.steps) == (True, 0.97, 4, plan.total_steps)
    assert blank.epochs == [1, 2, 3, 4]
    assert blank.batches == plan.total_steps


def test_the_seconds_and_rates_of_a_run_are_those_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log, ticks = RememberingLog(), itertools.count()  # each event takes a second, and all else a nanosecond
    now = SimpleNamespace(perf_counter=lambda: len(log.keys) + 1e-9 * next(ticks))
    monkeypatch.setattr("train.measure.timing.time", now)
    clock = Clock(cast(Engine, NumberEngine()), 2, 5)
    result, _ = _run(Blank(), log, [], [0.97], clock=clock)
    logged = len(log.keys)
    log.keys.append("the last checkpoint, after run_stop")
    assert result.run_s == pytest.approx(logged, abs=1e-3), "from before run_start to after run_stop"
    assert clock.stepping_s == pytest.approx(logged - 3, abs=1e-3), "without the three events of the evaluation"


@pytest.mark.parametrize(
    ("target", "tops", "epochs", "failure"),
    [
        ("0.97", [0.97], 2, None),
        ("0.97", [0.5, 0.6], 4, "target top-1 0.97 not reached in 4 epochs: last 0.6000"),
        ("null", [0.01, 0.02], 4, None),
    ],
    ids=["reached", "missed", "none"],
)
def test_a_run_ends_at_its_target_and_is_no_success_without_it(
    target: str, tops: list[float], epochs: int, failure: str | None
) -> None:
    log = RememberingLog()
    result, plan = _run(Remembered(log), log, [f"run.target_top1={target}"], tops)
    assert (result.epochs, result.steps, result.success, result.failure) == (
        epochs, plan.steps_after(epochs), failure is None, failure,
    )  # fmt: skip
    assert log.keys[-1] == f"run_stop {'aborted' if failure else 'success'}"


def test_a_run_whose_last_evaluation_is_not_finite_is_no_success() -> None:
    log, score = RememberingLog(), Score("top-1", 0.5, {"eval_loss": math.inf}, "")
    result, _ = _run(Remembered(log), log, ["run.target_top1=null"], [], evaluate=lambda: score)
    assert (result.success, log.keys[-1]) == (False, "run_stop aborted")


OVERFLOW = "not finite at step 22: float16 overflowed in 10 steps in a row; set cluster.engine.precision=bfloat16"


@pytest.mark.parametrize(
    ("faults", "words", "step"),
    [
        ({"bad_step": 7}, "loss not finite at step 7, first on rank 0", 7),
        ({"bad_step": 36}, "loss not finite at step 36", 36),
        ({"bad_step": 37}, "loss not finite at step 37", 37),  # the last one before the evaluation
        ({"overflows": [*range(3, 12), *range(13, 40)]}, OVERFLOW, 22),
        ({"fails_at": 3}, "OSError: record 7 is torn", 3),
    ],
)
def test_a_step_that_fails_aborts_the_run_before_an_evaluation_and_is_named(
    faults: dict[str, Any], words: str, step: int
) -> None:
    log = RememberingLog()
    with pytest.raises(RunFailed, match=words) as caught:
        _run(Remembered(log, **faults), log, [], [0.97])
    assert (caught.value.step, isinstance(caught.value.__cause__, LossNotFinite)) == (step, "not finite" in words)
    assert ("eval_start" in log.keys, log.keys[-1]) == (False, "run_stop aborted")


def test_a_run_goes_on_after_skipped_steps_and_no_loss_of_theirs_counts() -> None:
    log, metrics, given = RememberingLog(), Intervals(), list[float]()
    overflows = [0, 7, *range(10, 19)]

    def stop_rule(_step: int, _score: Score, losses: Sequence[float]) -> None:
        given.extend(losses)

    blank = Remembered(log, overflows=overflows)
    result, _ = dry_train(
        load_recipe("digits", SHORT), 1, [0.5, 0.97], log=log, blank=blank, metrics=metrics, stop_rule=stop_rule
    )
    assert result.success
    assert (given, len(given)) == ([1.0] * len(given), 38 - len(overflows))
    losses = [row["loss"] for row in metrics.rows]
    assert losses[:2] == [1.0, 1.0]
    assert [math.isnan(loss) for loss in losses[2:5]] == [True, False, False], "nothing is known of steps 10 to 14"
    assert [row.get("skipped_steps", 0) for row in metrics.rows] == [1, 1, 5, 4] + [0] * (len(losses) - 4)


def test_blocks_cover_all_epochs_and_end_with_evaluations() -> None:
    plan = plan_run(load_recipe("digits", ["run.epochs=7", "run.eval_every_epochs=3", "run.eval_first_epoch=2"]), 1)
    assert blocks(plan) == [range(1, 3), range(3, 6), range(6, 8)]


class Remembering:
    """A keeper that remembers where it was to keep what."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Position]] = []

    def evaluated(self, _source: object, at: Position, score: object = None) -> None:
        self.kept.append(("evaluated", at))

    def stopped(self, _source: object, at: Position) -> None:
        self.kept.append(("stopped", at))


def test_a_stop_comes_at_an_intervals_end_with_the_state_kept_and_the_log_aborted() -> None:
    log, keeper = RememberingLog(), Remembering()
    blank = Remembered(log)
    with pytest.raises(RunStopped, match=r"^stopped, state saved after step 25$"):
        _run(blank, log, [], [0.5], checkpoints=keeper, stop_from=22)
    assert keeper.kept == [("stopped", Position(2, 25))]
    assert blank.batches == 25
    assert log.keys[-1] == "run_stop aborted"


def test_a_run_that_stopped_before_an_evaluation_begins_with_it() -> None:
    log = RememberingLog()
    blank = Remembered(log)
    result, plan = _run(blank, log, [], [0.97], start=Position(2, 38))
    assert plan.steps_after(2) == result.steps == 38
    assert blank.batches == 0
    assert "eval_accuracy" in log.keys


@pytest.mark.parametrize(("part", "tensor"), [("weight", "second"), ("momentum", "state 1"), ("statistic", "mean")])
@pytest.mark.parametrize("step", [20, 37])  # the block's epochs end with steps 18 and 37
def test_a_state_that_is_not_finite_aborts_before_an_evaluation_although_no_loss_shows_it(
    part: str, tensor: str, step: int
) -> None:
    log, keeper = RememberingLog(), Remembering()
    with pytest.raises(RunFailed, match=f"not finite at step 37 of epoch 2: .*{tensor} on rank 0;") as caught:
        _run(Remembered(log, spoils=(step, part)), log, [], [0.97], checkpoints=keeper)
    assert caught.value.step == 37
    assert ("eval_start" in log.keys, log.keys[-1], keeper.kept) == (False, "run_stop aborted", [])


def test_a_state_that_is_not_finite_is_not_kept_by_a_run_that_is_told_to_stop() -> None:
    log, keeper = RememberingLog(), Remembering()
    with pytest.raises(RunFailed, match="not finite at step 24 of epoch 2: second on rank 0;"):
        _run(Remembered(log, spoils=(19, "weight")), log, [], [], checkpoints=keeper, stop_from=22)
    assert keeper.kept == []


class Intervals(NullMetrics):
    """Remembers the rows of the intervals."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def row(self, **fields: Any) -> None:
        if fields["kind"] == "interval":
            self.rows.append(fields)


@pytest.mark.parametrize("stop_from", [1, 4, 5, 34, 35, 36])  # a block ends with step 37
def test_a_run_that_stops_goes_on_at_the_step_after_the_last_one_that_it_reported(stop_from: int) -> None:
    log, metrics = RememberingLog(), Intervals()
    recipe = load_recipe("digits", SHORT)
    with pytest.raises(RunStopped) as stopped:
        dry_train(recipe, 1, [0.5], log=log, blank=Remembered(log), metrics=metrics, stop_from=stop_from)
    assert stopped.value.step == metrics.rows[-1]["step"] + 1


@pytest.mark.parametrize(("run_ahead", "stops_after"), [(0, 5), (1, 5), (2, 10), (5, 10)])
def test_the_last_steps_of_an_interval_are_not_read_while_they_may_still_be_running(
    run_ahead: int, stops_after: int
) -> None:
    log, keeper = RememberingLog(), Remembering()
    # The notice comes in the fourth of five steps: with two steps ahead, the loop sees it an interval later.
    with pytest.raises(RunStopped):
        _run(Remembered(log), log, [], [], run_ahead_steps=run_ahead, checkpoints=keeper, stop_from=3)
    assert keeper.kept == [("stopped", Position(1, stops_after))]


class SlowClock(Clock):
    """The clock of steps that take 4 s each."""

    @property
    def stepping_s(self) -> float:
        return 4.0 * self.steps


@pytest.mark.parametrize(("stop_from", "stops_after"), [(0, 3), (8, 11), (44, 47)])
def test_a_run_of_slow_steps_stops_within_an_interval(stop_from: int, stops_after: int) -> None:
    log, keeper, metrics = RememberingLog(), Remembering(), Intervals()
    recipe = load_recipe("digits", [*SHORT, "run.log_every_steps=50"])
    clock = SlowClock(cast(Engine, NumberEngine()), 2, 50)
    with pytest.raises(RunStopped):
        dry_train(
            recipe, 1, [0.5], log=log, blank=Remembered(log), metrics=metrics, stop_from=stop_from, clock=clock,
            checkpoints=keeper,
        )  # fmt: skip
    what, at = keeper.kept[-1]
    assert (what, at.step) == ("stopped", stops_after)
    assert metrics.rows[-1]["step"] == stops_after - 1, "what was not reported yet is reported"
