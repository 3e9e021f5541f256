"""What a log says of a run, whoever wrote it. Pure: nothing is read or written here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

__all__ = ["Evaluation", "RunRecord", "Span", "between", "whole"]

_LEAST_COVER = 0.1
"""Epoch marks that cover less of the training were written afterwards, all at once, and say nothing of its epochs."""


def between(begin: float | None, end: float | None) -> float | None:
    """Subtract times, to the microsecond, which is all that Unix seconds hold; None where one is, or time ran back."""
    return round(end - begin, 6) if begin is not None and end is not None and end >= begin else None


def whole(number: float) -> int | float:
    """Write 35.0 as 35, and leave 35.5."""
    return int(number) if number == int(number) else number


@dataclass(frozen=True)
class Span:
    """From ``begin_s`` to ``end_s``, in seconds since run_start; ``epochs`` is how many lie in it."""

    first_epoch: int | float
    begin_s: float
    end_s: float
    epochs: float = 1


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: accuracy is a share (0 to 1), or None where it was no number.

    Attributes:
        epoch: Epochs trained so far.
        at_s: Seconds since run_start.
        seconds: How long it took; None where the log does not say.
    """

    epoch: int | float | None
    at_s: float | None
    accuracy: float | None
    seconds: float | None


@dataclass(frozen=True)
class RunRecord:
    """What a log says of a run; None where it does not say. Epochs count from 1, whatever the log's own habit.

    Attributes:
        source: The file.
        ruleset: By the dialect, and among v0.7 to v4.0, which share one, by the run's date.
        status: Of run_stop; of v0.5, which has none, by the target.
        began_s: Unix time of run_start.
        init_s: From the first init_start to init_stop.
        init_starts: (how many ranks logged init_start, seconds from the first to the last).
        time_to_train_s: From run_start to run_stop; None for a run that never stopped.
        elapsed_s: From run_start to the last event seen, run_stop or not.
        epoch_spans: Each epoch, or where only blocks are marked, each block.
        throughputs: (epoch, images a second) as the log itself tells them.
        unreadable: Records that could not be read.
    """

    source: Path
    ruleset: str | None = None
    submitter: str | None = None
    benchmark: str | None = None
    division: str | None = None
    platform: str | None = None
    status: Literal["success", "aborted"] | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    eval_samples: int | None = None
    target: float | None = None
    seeds: tuple[int | str, ...] = ()
    began_s: float | None = None
    init_s: float | None = None
    init_starts: tuple[int, float] = (0, 0.0)
    time_to_train_s: float | None = None
    elapsed_s: float | None = None
    evaluations: tuple[Evaluation, ...] = ()
    epoch_spans: tuple[Span, ...] = ()
    throughputs: tuple[tuple[float, float], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0

    @property
    def epochs(self) -> int | float | None:
        """Epochs trained up to the last evaluation, or where there is none, up to the last epoch's end."""
        evaluated = [each.epoch for each in self.evaluations if each.epoch is not None]
        if evaluated:
            return max(evaluated)
        return max((whole(span.first_epoch + span.epochs - 1) for span in self.epoch_spans), default=None)

    @property
    def final_accuracy(self) -> float | None:
        """The last accuracy that is a number."""
        return next((each.accuracy for each in reversed(self.evaluations) if each.accuracy is not None), None)

    @property
    def median_epoch_s(self) -> float | None:
        """Median seconds of an epoch; where only blocks are marked, of a block over its epochs."""
        lengths = [(span.end_s - span.begin_s) / span.epochs for span in self.epoch_spans]
        covered = sum(span.end_s - span.begin_s for span in self.epoch_spans)
        training_s = (self.elapsed_s or 0) - sum(each.seconds or 0 for each in self.evaluations)
        if not lengths or covered < _LEAST_COVER * training_s:
            return None
        return median(lengths)

    @property
    def images_per_s(self) -> float | None:
        """Training images a second, over all ranks: of the median epoch, else as the log tells them."""
        epoch_s = self.median_epoch_s
        if epoch_s and self.train_samples:
            return self.train_samples / epoch_s
        return median(rate for _, rate in self.throughputs) if self.throughputs else None
