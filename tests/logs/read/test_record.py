"""What a record computes from what a log has: epochs, rates, and why there is none."""

from pathlib import Path
from typing import Any

import pytest

from logs.read.lines import to_number
from logs.read.record import EpochSpan, Evaluation, RunRecord, as_integer, elapsed

EVALUATIONS = (Evaluation(4, 30.0, 0.5, 1.0), Evaluation(8, 60.0, None, 1.0))
FULL: dict[str, Any] = {"train_samples": 100, "evaluations": EVALUATIONS, "time_to_train_s": 80.0, "elapsed_s": 90.0}


def _record(**values: Any) -> RunRecord:
    return RunRecord(Path("log"), **values)


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [(1.0, 3.5, 2.5), (2.0, 2.0, 0.0), (2.0, 1.9, None), (None, 1.0, None), (1.0, None, None)],
)
def test_nothing_lasts_less_than_no_time(begin: float | None, end: float | None, seconds: float | None) -> None:
    assert elapsed(begin, end) == seconds


def test_whole_numbers_become_integers() -> None:
    assert [repr(as_integer(number)) for number in (35.0, 35.5, -0.0)] == ["35", "35.5", "0"]


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), ("2.5", 2.5), (True, None), (None, None), ("x", None), ([1], None), (float("inf"), None), ("nan", None),
     (10**400, None)],
)  # fmt: skip
def test_only_finite_numbers_are_numbers(value: Any, number: float | None) -> None:
    assert to_number(value) == number


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 8 * 100 / 80),
        ({"time_to_train_s": None}, 8 * 100 / 60),
        ({"time_to_train_s": None, "evaluations": (), "last_epoch": 6}, 6 * 100 / 90),
        ({"train_samples": None, "benchmark": "resnet"}, 8 * 1_281_167 / 80),
    ],
)
def test_a_rate_is_images_of_all_epochs_by_the_time_of_the_run(changes: dict[str, Any], rate: float) -> None:
    record = _record(**FULL | changes)
    assert record.images_per_s == pytest.approx(rate)
    assert record.no_rate_because == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_samples": None}, "the log does not have train_samples"),
        ({"evaluations": ()}, "the log does not have an epoch that has ended"),
        ({"time_to_train_s": 0.0}, "the log does not have the times of run_start and of an end"),
        ({"train_samples": None, "evaluations": ()}, "the log does not have train_samples and an epoch that has ended"),
        ({"benchmark": "bert"}, "the log is of the benchmark bert, which trains on no images"),
    ],
)
def test_without_a_rate_the_words_say_why(changes: dict[str, Any], words: str) -> None:
    record = _record(**FULL | changes)
    assert (record.images_per_s, record.no_rate_because) == (None, words)


def test_the_last_accuracy_that_is_a_number_counts_and_the_most_epochs() -> None:
    record = _record(evaluations=(*EVALUATIONS, Evaluation(2, 70.0, None, None)), last_epoch=99)
    assert (record.final_accuracy, record.epochs) == (0.5, 8)
    assert _record(last_epoch=7).epochs == 7
    spans = (EpochSpan(1, 0.0, 10.0, 2), EpochSpan(3, 20.0, 21.0), EpochSpan(4, 30.0, 39.0))
    assert _record(epoch_spans=spans).median_epoch_s == 5.0
    assert _record().median_epoch_s is None
    assert (_record(benchmark="bert").images_per_epoch, _record().images_per_epoch) == (None, None)


@pytest.mark.parametrize(
    ("samples", "is_imagenet"), [(None, True), (1281167, True), (1281024, True), (1260000, False), (60_000, False)]
)
def test_imagenet_is_told_by_the_number_of_its_images(samples: int | None, is_imagenet: bool) -> None:
    assert _record(benchmark="resnet", train_samples=samples).is_of_imagenet is is_imagenet
    assert not _record(benchmark="bert", train_samples=samples).is_of_imagenet
