"""Marks of epochs and blocks: which of several begins and ends count, and which marks are of no use."""

from __future__ import annotations

from typing import Any

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
