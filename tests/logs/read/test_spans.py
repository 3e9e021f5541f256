"""Marks of epochs and blocks: which of several begins and ends count, and which marks are of no use."""

from typing import Any

import pytest

from logs.read.evaluations import Evaluations
from logs.read.lines import Event
from logs.read.record import EpochSpan, Evaluation
from logs.read.spans import Spans


def _spans(*marks: tuple[str, float | None, Any]) -> Spans:
    """Return the spans of marks (key, Unix seconds, epoch or metadata)."""
    found = Spans()
    for key, at_s, told in marks:
        metadata = told if isinstance(told, dict) else {"epoch_num": told}
        found.add(Event(key, told, metadata, at_s, None))
    return found


def _since(spans: Spans, start: float | None, shift: int = 0, *evaluations: Evaluation) -> tuple[EpochSpan, ...]:
    return spans.since(start, shift, Evaluations(), evaluations, 1.0)


def test_the_first_epoch_is_the_lowest_also_if_another_is_logged_before() -> None:
    assert Spans().first_epoch() is None
    assert _spans(*(("epoch_start", 10.0, epoch) for epoch in (3, 0, 7))).first_epoch() == 0
    assert _spans(("train_epoch", 10.0, 2), ("train_epoch", 11.0, 1)).first_epoch() == 1
    assert _spans(("block_start", 10.0, {"first_epoch_num": 0}), ("epoch_start", 11.0, 4)).first_epoch() == 4


def test_an_epoch_of_the_first_round_ends_once_with_what_comes_first() -> None:
    spans = _spans(("train_epoch", 10.0, 0))
    spans.close(20.0)  # by an evaluation
    spans.close(30.0)  # by the end of the run
    spans.add(Event("train_epoch", 1, {}, 40.0, None))
    spans.add(Event("train_epoch", 0, {}, 50.0, None))  # said again, by another rank
    spans.close(60.0)
    assert _since(spans, 0.0, 1) == (EpochSpan(1, 10.0, 20.0), EpochSpan(2, 40.0, 50.0))
    assert spans.last_epoch(1) == 2


def test_an_end_without_a_time_leaves_an_epoch_of_the_first_round_open() -> None:
    spans = _spans(("train_epoch", 10.0, 0), ("train_epoch", None, 1), ("train_epoch", 15.0, 2))
    spans.close(None)
    assert (_since(spans, 0.0, 1), spans.last_epoch(1)) == ((), None)


def test_an_evaluation_without_an_epoch_or_a_time_or_of_an_epoch_before_bounds_no_stretch() -> None:
    told = (
        (4, 10.0, 2.0),
        (None, 11.0, 1.0),
        (5, None, None),
        (4, 12.0, None),
        (8, 30.0, 40.0),
        (9.5, 33.3333337, None),
    )
    spans = _since(Spans(), 0.0, 0, *(Evaluation(epoch, at_s, 0.5, own_s) for epoch, at_s, own_s in told))
    assert spans == (
        EpochSpan(1, 0.0, 8.0, 4), EpochSpan(5, 10.0, 10.0, 4), EpochSpan(9, 30.0, 33.333334, 1.5),
    )  # fmt: skip


def test_nothing_is_known_of_epochs_without_a_begin_of_the_run() -> None:
    marks = _spans(("epoch_start", 10.0, 1), ("epoch_stop", 20.0, 1))
    assert _since(marks, None, 0, Evaluation(1, None, 0.5, None)) == ()
    assert _since(marks, 5.0, 0) == (EpochSpan(1, 5.0, 15.0),)


@pytest.mark.parametrize(
    ("elapsed_s", "epochs", "are_believed"), [(100, 10, True), (100.1, 10, False), (99, 11, False)]
)
def test_marks_that_cover_seven_tenths_of_time_and_epochs_are_believed(
    elapsed_s: float, epochs: int, are_believed: bool
) -> None:
    marks = [
        mark for n in range(7) for mark in (("epoch_start", 10.0 * n, n + 1), ("epoch_stop", 10.0 * n + 10, n + 1))
    ]
    evaluations = (Evaluation(None, 50.0, 0.1, None), Evaluation(epochs, elapsed_s, 0.5, None))
    found = _spans(*marks).since(0.0, 0, Evaluations(), evaluations, elapsed_s)
    assert len(found) == (7 if are_believed else 1)


def test_of_the_begins_of_evaluations_the_first_inside_a_block_ends_the_training() -> None:
    marks = Evaluations()
    for at_s, epoch in ((5.0, 1), (10.0, 2), (48.0, 5), (45.0, 4), (60.0, 8), (70.0, 9)):
        marks.start(Event("eval_start", None, {"epoch_num": epoch}, at_s, None))
    spans = _spans(("block_start", 10.0, {"first_epoch_num": 1, "epoch_count": 4}))
    assert spans.since(0.0, 0, marks, (), 0.0) == ()
    spans.add(Event("block_stop", None, {"first_epoch_num": 1}, 60.0, None))
    assert spans.since(0.0, 0, marks, (), 0.0) == (EpochSpan(1, 10.0, 45.0, 4),)
    spans = _spans(("block_start", 61.0, {"first_epoch_num": 5}), ("block_stop", 70.0, {"first_epoch_num": 5}))
    assert spans.since(0.0, 0, marks, (), 0.0) == (EpochSpan(5, 61.0, 70.0, 1),)


def test_of_a_log_with_endless_marks_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.read.spans.CAP", 2)
    for begin in ("epoch_start", "train_epoch"):
        marks = [(begin, 10.0 * n, n + 1) for n in range(4)] + [("epoch_stop", 10.0 * n + 5, n + 1) for n in range(4)]
        assert [each.first_epoch for each in _since(_spans(*marks), 0.0)] == [1, 2]
