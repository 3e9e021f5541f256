"""What a run reports: the mean of an interval, the rate since the last report, and the time that is left."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logs.metrics import NullMetrics
from tests.programs import Terminal
from train.engine.protocol import Engine
from train.evaluate import Score
from train.measure.progress import LossWindow, Progress, StepLoss
from train.measure.timing import Clock
from train.step import StepArrays


class Rows(NullMetrics):
    """Remembers rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.flushed = 0

    def row(self, **fields: Any) -> None:
        self.rows.append(fields)

    def flush(self) -> None:
        self.flushed += 1


class Times:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.steps, self.stepping_s = 0, 0.0

    def fractions(self) -> tuple[float, float]:
        return 0.1, 0.2


def _progress(every: int = 3, *, visible: bool = False) -> tuple[Progress, Rows, Times]:
    rows, clock = Rows(), Times()
    progress = Progress(
        rows, cast(Clock, clock), global_batch_size=64, total_steps=100, every_steps=every, visible=visible
    )
    return progress, rows, clock


def _losses(first: int, *means: float) -> list[StepLoss]:
    return [StepLoss(first + n, 1, 0.1 * (first + n), mean, own_is_finite=True, ranks_stopping=0)
            for n, mean in enumerate(means)]  # fmt: skip


def test_an_interval_reports_the_mean_loss_and_the_last_steps_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.measure.progress.time", SimpleNamespace(time=lambda: 5e9))
    progress, rows, clock = _progress()
    clock.steps, clock.stepping_s = 4, 2.0
    progress.steps(_losses(0, 3.0, 2.0, 1.0, 9.0))
    clock.steps, clock.stepping_s = 7, 8.0
    progress.steps(_losses(4, 8.0))
    progress.steps(_losses(5, 4.0, 0.5))
    for _ in range(2):
        progress.steps([], "end")  # the second time, nothing is left to report
    told = [(row["step"], row["loss"], row["lr"], row["images_per_s"]) for row in rows.rows]
    # 4 steps of 64 images in 2 s, then 3 steps in 6 s; the last interval is cut short.
    assert told == [
        (2, 2.0, pytest.approx(0.2), 128.0), (5, 7.0, pytest.approx(0.5), 32.0), (6, 0.5, pytest.approx(0.6), 32.0),
    ]  # fmt: skip
    assert {(row["kind"], row["input_wait_fraction"], row["comm_exposed_fraction"]) for row in rows.rows} == {
        ("interval", 0.1, 0.2)
    }
    assert [(row["epoch"], row["time"]) for row in rows.rows] == [(1, 5e9)] * 3
    progress.close()
    assert rows.flushed == 1


def test_a_row_has_the_rate_of_its_own_interval_however_late_its_losses_are_read() -> None:
    progress, rows, clock = _progress()
    clock.steps, clock.stepping_s = 3, 3.0
    progress.steps(_losses(0, 1.0))  # two steps may still be running
    clock.steps, clock.stepping_s = 6, 4.0
    progress.steps(_losses(1, 1.0, 1.0, 1.0))
    clock.steps, clock.stepping_s = 7, 6.0
    progress.steps(_losses(4, 1.0, 1.0, 1.0), "end")
    # 3 steps of 64 images in 3 s, 3 in 1 s, 1 in 2 s.
    assert [(row["step"], row["images_per_s"]) for row in rows.rows] == [(2, 64.0), (5, 192.0), (6, 32.0)]


def test_a_line_says_how_much_time_is_left_at_the_pace_so_far(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "train.measure.progress")
    progress, rows, clock = _progress(10, visible=True)
    clock.steps, clock.stepping_s = 10, 25.0
    progress.steps(_losses(0, *[2.0] * 10))
    progress.evaluated(1, 9, Score("top-1", 0.75, {"top1": 0.75, "correct": 30, "total": 40}, "30 of 40"), 1.5)
    assert rows.flushed == 1, "an evaluation is written at once"
    clock.steps, clock.stepping_s = 20, 25_000.0
    progress.steps(_losses(10, *[1.0] * 10))
    progress.close()
    assert caplog.messages == [
        "epoch 1 step 10/100  26 images/s  loss 2.0000  lr 0.9  at most 3m45s left",
        "epoch 1  top-1 0.7500 (30 of 40) in 1.50 s",
        "epoch 1 step 20/100  0.0 images/s  loss 1.0000  lr 1.9  top-1 0.7500  at most 27h46m left",
    ]
    (row,) = [row for row in rows.rows if row["kind"] == "evaluation"]
    assert (row["step"], row["epoch"], row["top1"], row["correct"], row["seconds"]) == (9, 1, 0.75, 30, 1.5)


def test_a_slow_rank_costs_a_line_when_it_becomes_slow_and_one_when_it_no_longer_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    progress, rows, _ = _progress(visible=True)
    nobody = {"step": 39, "ranks": [], "hosts": []}
    slow = {"step": 99, "ranks": [2, 7], "hosts": ["a", "b"], "since_step": 39, "ratio": 1.312, "cost_s": 0.0123}
    for found in (nobody, nobody, slow, slow | {"step": 119}, nobody | {"step": 139}, nobody):
        progress.compared(found)
    assert caplog.messages == [
        "rank 2 on a, rank 7 on b are slow since about step 39: 1.31 times the median rank's own time in a step, which "
        "makes a step 12.3 ms longer",
        "no longer slow: rank 2 on a, rank 7 on b",
    ]
    assert [(row["kind"], row["step"]) for row in rows.rows] == [("slow_ranks", step) for step in (39, 99, 119, 139)]
    assert rows.flushed == 2, "whoever watches sees it at once"


def test_a_terminal_has_one_line_that_changes_and_no_line_that_repeats_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "train.measure.progress")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    quiet, _, _ = _progress(10, visible=False)
    quiet.steps([], "end")
    quiet.close()
    assert terminal.getvalue() == "", "of the other ranks"
    progress, _, clock = _progress(10, visible=True)
    clock.steps, clock.stepping_s = 10, 25.0
    progress.steps(_losses(0, *[2.0] * 10))
    progress.evaluated(1, 9, Score("top-1", 0.75, {"top1": 0.75, "correct": 30, "total": 40}, "30 of 40"), 1.5)
    progress.steps(_losses(10, *[1.0] * 10))
    progress.close()
    assert caplog.messages == ["epoch 1  top-1 0.7500 (30 of 40) in 1.50 s"]
    bars = [text for text in terminal.getvalue().split("\r") if "images/s" in text]
    assert {text.partition("|")[0] for text in bars} == {" 10% ", " 20% "}
    assert terminal.getvalue().split("\r")[-2].strip() == "", "the line goes when the run ends"
    assert "10/100 loss 2.000 26 images/s 3m45s left" in terminal.getvalue()
    assert " left None" not in terminal.getvalue()
    assert "20/100 loss 1.000 26 images/s 3m20s left top-1 0.7500" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()


class Numbers:
    """An engine whose arrays are numbers.

    Attributes:
        reads: How many numbers were read at once.
    """

    def __init__(self) -> None:
        self.reads: list[int] = []

    def to_numbers(self, arrays: Sequence[float]) -> list[float]:
        self.reads.append(len(arrays))
        return list(arrays)


def test_losses_are_read_at_once_oldest_first_as_means_of_the_global_batch() -> None:
    engine = Numbers()
    window = LossWindow(cast(Engine, engine), 64)
    nan = float("nan")
    for step, (own, summed, stops) in enumerate([(32.0, 128.0, 0.0), (32.0, nan, 0.0), (nan, nan, 2.0), (1, 64.0, 0)]):
        window.push(step, 5, 0.5, StepArrays(own, summed, stops))
    first, *others = window.pop(1)
    assert (first.step, first.epoch, first.lr, first.mean, first.own_is_finite) == (0, 5, 0.5, 2.0, True)
    assert [(each.step, each.own_is_finite, each.ranks_stopping) for each in others] == [(1, True, 0), (2, False, 2)]
    assert [each.step for each in window.pop(0)] == [3]
    assert window.pop(0) == window.pop(2) == []
    assert engine.reads == [9, 3], "a read of a GPU waits for all that is queued"
