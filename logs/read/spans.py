"""Collects the epochs and blocks of a log, and decides which of its marks tell how long an epoch took."""

from collections.abc import Sequence
from typing import Any

from logs.read.evaluations import CAP, Evaluations
from logs.read.lines import Event, to_number
from logs.read.record import EpochSpan, Evaluation, as_integer

_LEAST_COVER = 0.7
"""Marks that cover a smaller share of the training time, or of the epochs, do not tell how long an epoch took.

Published logs have marks that the host wrote ahead of its GPUs (0.1 to 0.5 of the time), marks that were all written at
the end, and blocks of one epoch that repeat their number.
"""


class Spans:
    """The marks of epochs and blocks: Unix times, by the number of the first epoch as the log has it."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[float, list[float]]] = {"epoch": {}, "block": {}}
        self._counts: dict[float, float] = {}
        self._open_epoch: float | None = None

    def add(self, event: Event) -> None:
        """Add an event that begins or ends an epoch or a block.

        Of several begins of one epoch the first counts, of several ends the last.
        """
        if event.key == "train_epoch":
            self._train_epoch(event)
        elif event.key.endswith("_start"):
            self._start(event)
        else:
            self._stop(event)

    def _start(self, event: Event) -> None:
        kind, epoch = _kind_and_epoch(event)
        if epoch is None or event.time_s is None or len(self._marks[kind]) >= CAP:
            return
        if kind == "block":
            self._counts[epoch] = to_number(event.metadata.get("epoch_count")) or 1.0
        self._marks[kind].setdefault(epoch, [event.time_s])

    def _stop(self, event: Event) -> None:
        kind, epoch = _kind_and_epoch(event)
        span = self._marks[kind].get(epoch) if epoch is not None else None
        if span and event.time_s is not None:
            span[1:] = [max([event.time_s, *span[1:]])]

    def _train_epoch(self, event: Event) -> None:
        """Begin an epoch of v0.5, which logs no end of an epoch: the next epoch or an evaluation ends it."""
        self.close(event.time_s)
        epoch = to_number(event.value)
        if epoch is not None and event.time_s is not None and len(self._marks["epoch"]) < CAP:
            self._marks["epoch"].setdefault(epoch, [event.time_s])
            self._open_epoch = epoch

    def close(self, time_s: float | None) -> None:
        """End the open epoch of v0.5."""
        span = self._marks["epoch"].get(self._open_epoch) if self._open_epoch is not None else None
        if span and len(span) == 1 and time_s is not None:
            span.append(time_s)
        self._open_epoch = None

    def first_epoch(self) -> float | None:
        """Return the lowest number of an epoch mark; None without epoch marks."""
        return min(self._marks["epoch"], default=None)

    def last_epoch(self, shift: int) -> int | float | None:
        """Return the number of the last epoch that has ended, by the marks alone."""
        rows = self._rows(shift, Evaluations())
        return max((as_integer(epoch + count - 1) for epoch, span, count in rows if len(span) > 1), default=None)

    def since(
        self, start: float | None, shift: int, marks: Evaluations, evaluations: Sequence[Evaluation], elapsed_s: float
    ) -> tuple[EpochSpan, ...]:
        """Return the epochs of the run.

        If the marks do not cover the run, the result is the stretches of training between evaluations.

        Args:
            start: Unix time of run_start. If None, nothing is returned.
            shift: Added to the epochs, so that they count from 1.
            marks: The evaluations with their Unix times; a block counts up to its evaluation.
            evaluations: The evaluations of the run.
            elapsed_s: Seconds from run_start to the last event.
        """
        if start is None:
            return ()
        found = tuple(
            EpochSpan(as_integer(epoch), round(span[0] - start, 6), round(span[1] - start, 6), count)
            for epoch, span, count in sorted(self._rows(shift, marks))
            if len(span) > 1 and span[1] >= span[0] >= start
        )
        return found if _cover(found, evaluations, elapsed_s) else _between(evaluations)

    def _rows(self, shift: int, marks: Evaluations) -> list[tuple[float, list[float], float]]:
        """Return (first epoch, begin and end, number of epochs): epochs, or blocks if no epoch has an end."""
        if any(len(span) > 1 for span in self._marks["epoch"].values()):
            return [(epoch + shift, span, 1.0) for epoch, span in self._marks["epoch"].items()]
        begins = tuple(marks.begins())
        blocks = self._marks["block"].items()
        return [(epoch, _without_evaluation(span, begins), self._counts[epoch]) for epoch, span in blocks]


def _cover(spans: Sequence[EpochSpan], evaluations: Sequence[Evaluation], elapsed_s: float) -> bool:
    """Return whether spans cover most of the training time and most of the epochs that were evaluated."""
    covered_s = sum(span.end_s - span.begin_s for span in spans)
    training_s = elapsed_s - sum(each.seconds or 0 for each in evaluations)
    evaluated = max((each.epoch for each in evaluations if each.epoch is not None), default=0)
    return covered_s >= _LEAST_COVER * training_s and sum(span.epochs for span in spans) >= _LEAST_COVER * evaluated


def _between(evaluations: Sequence[Evaluation]) -> tuple[EpochSpan, ...]:
    """Return the stretches from run_start to the first evaluation, and from each evaluation to the next."""
    spans: list[EpochSpan] = []
    epoch, begin_s = 0.0, 0.0
    for each in evaluations:
        if each.epoch is None or each.at_s is None or each.epoch <= epoch:
            continue
        end_s = max(each.at_s - (each.seconds or 0.0), begin_s)
        spans.append(EpochSpan(as_integer(epoch + 1), round(begin_s, 6), round(end_s, 6), each.epoch - epoch))
        epoch, begin_s = float(each.epoch), each.at_s
    return tuple(spans)


def _without_evaluation(span: list[float], begins: Sequence[float]) -> list[float]:
    inside = [at for at in begins if span[1:] and span[0] < at < span[1]]
    return [span[0], min(inside)] if inside else span


def _kind_and_epoch(event: Event) -> tuple[str, Any]:
    """Return ``epoch`` or ``block``, and the first epoch of the range; None if the log has no number there."""
    kind = event.key.partition("_")[0]
    return kind, event.epoch if kind == "epoch" else to_number(event.metadata.get("first_epoch_num"))
