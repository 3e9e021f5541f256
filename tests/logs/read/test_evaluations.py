"""Evaluations from their events in every order, of one rank or of several, with and without an epoch in the event."""

from typing import Any

import pytest

from logs.read import evaluations
from logs.read.evaluations import Evaluations
from logs.read.lines import Event
from logs.read.record import Evaluation


def _collect(*told: tuple[str, float, Any, float | None]) -> Evaluations:
    """Return the evaluations of events (kind, Unix seconds, value, epoch in the metadata)."""
    found = Evaluations()
    for kind, at_s, value, epoch in told:
        metadata = {} if epoch is None else {"epoch_num": epoch}
        getattr(found, kind)(Event(kind, value, metadata, at_s, None))
    return found


def _old(top1: float, epoch: int) -> dict[str, float]:
    return {"value": top1, "epoch": epoch}


@pytest.mark.parametrize(
    "told",
    [
        [("start", 10, None, 4), ("accuracy", 12, 0.5, 4), ("stop", 13, None, 4)],
        [("start", 10, None, 4), ("stop", 13, None, 4), ("accuracy", 12, 0.5, 4)],
        [("accuracy", 12, 0.5, 4), ("stop", 13, None, 4), ("start", 10, None, 4)],
        [("start", 10, None, 4), ("start", 11, None, 4), ("accuracy", 12, 0.5, 4), ("accuracy", 12.5, 0.9, 4),
         ("stop", 13, None, 4), ("stop", 14, None, 4)],
        [("start", 10, None, None), ("accuracy", 12, _old(0.5, 4), None), ("stop", 13, None, None)],
        [("start", 10, None, None), ("stop", 13, None, None), ("accuracy", 12, _old(0.5, 4), None)],
    ],
)  # fmt: skip
def test_an_evaluation_is_the_same_whatever_the_order_of_its_events(told: list[Any]) -> None:
    found = _collect(*told)
    assert found.since(5.0, 0) == (Evaluation(4, 7.0, 0.5, 3.0),)
    assert list(found.begins()) == [10]
    assert found.first_epoch() == 4


def test_each_evaluation_of_the_first_round_has_times_of_its_own() -> None:
    first = [("start", 10, None, None), ("accuracy", 12, _old(0.5, 0), None), ("stop", 13, None, None)]
    second = [("start", 20, None, None), ("stop", 25, None, None), ("accuracy", 26, _old(0.6, 4), None)]
    assert _collect(*first, *second).since(0.0, 1) == (Evaluation(1, 12.0, 0.5, 3.0), Evaluation(5, 26.0, 0.6, 5.0))


def test_what_did_not_finish_or_was_a_warm_up_is_left_out_and_the_others_come_in_order_of_time() -> None:
    found = _collect(
        ("accuracy", 30, 0.7, 8), ("accuracy", 20, {"accuracy": "0.6"}, 4), ("start", 40, None, 12),
        ("accuracy", 9.9, 0.1, 1), ("accuracy", 10.0, "none", 2), ("accuracy", 35, 0.8, None),
    )  # fmt: skip
    assert found.since(10.0, 0) == (
        Evaluation(2, 0.0, None, None), Evaluation(4, 10.0, 0.6, None), Evaluation(8, 20.0, 0.7, None),
        Evaluation(None, 25.0, 0.8, None),
    )  # fmt: skip
    assert [each.accuracy for each in found.since(None, 0)] == [0.1, None, 0.6, 0.7, 0.8]
    assert [each.at_s for each in found.since(None, 0)] == [None] * 5
    assert found.first_epoch() == 1
    assert _collect().first_epoch() is None


def test_an_evaluation_without_an_epoch_ends_with_the_stop_that_follows() -> None:
    found = _collect(("accuracy", 12, _old(0.5, 4), None), ("stop", 13, None, None), ("stop", 14, None, None))
    assert found.since(0.0, 0) == (Evaluation(4, 12.0, 0.5, None),)
    with_begin = _collect(("start", 10, None, 4), ("accuracy", 12, 0.5, 4), ("stop", 13, None, None))
    assert with_begin.since(0.0, 0) == (Evaluation(4, 12.0, 0.5, 3.0),)


def test_of_a_log_with_endless_evaluations_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "CAP", 3)
    found = _collect(*(("accuracy", 10 + epoch, epoch / 10, epoch) for epoch in range(5)))
    assert [each.epoch for each in found.since(None, 0)] == [0, 1, 2]


def test_an_epoch_that_a_resumed_run_repeats_is_told_once_with_all_its_events() -> None:
    before = _collect(("start", 10, None, 4), ("accuracy", 12, 0.5, 4), ("stop", 13, None, 4))
    before.resume()
    for kind, at_s, value in (("start", 30, None), ("accuracy", 34, 0.6), ("stop", 35, None)):
        getattr(before, kind)(Event(kind, value, {"epoch_num": 4}, at_s, None))
    assert before.since(5.0, 0) == (Evaluation(4, 29.0, 0.6, 5.0),)


def test_accuracies_without_an_epoch_or_a_time_are_all_kept() -> None:
    found = Evaluations()
    for at_s, top1 in ((None, 0.4), (12.0, 0.5), (14.0, 0.6)):
        found.accuracy(Event("eval_accuracy", top1, {}, at_s, None))
    assert [(each.at_s, each.accuracy) for each in found.since(10.0, 0)] == [(None, 0.4), (2.0, 0.5), (4.0, 0.6)]


def test_evaluations_at_one_time_come_in_the_order_of_their_epochs() -> None:
    found = _collect(("accuracy", 10, 0.8, 8), ("accuracy", 10, 0.4, 4), ("accuracy", 9, 0.9, 9))
    assert [each.epoch for each in found.since(None, 0)] == [9, 4, 8]


def test_events_without_an_epoch_before_any_other_are_no_evaluation() -> None:
    assert _collect(("stop", 10, None, None), ("start", 11, None, None)).since(None, 0) == ()


def test_a_begin_of_the_first_round_is_that_of_the_next_accuracy_alone() -> None:
    found = _collect(
        ("start", 10, None, None), ("stop", 11, None, None), ("start", 20, None, None),
        ("accuracy", 22, _old(0.5, 4), None), ("accuracy", 30, _old(0.6, 8), None),
    )  # fmt: skip
    assert found.since(0.0, 0) == (Evaluation(4, 22.0, 0.5, None), Evaluation(8, 30.0, 0.6, None))
