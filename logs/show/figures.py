"""What a report draws: subjects to charts. A chart without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from logs.read.lines import to_number
from logs.show.subject import Subject
from logs.show.svg import Band, Bar, Series, bar_chart, line_chart

__all__ = ["course", "figures"]

_Points = list[tuple[float, float | None]]
_SHARES = ("computing", "waiting for communication", "waiting for input")
_KEY = ("computing", "communication", "input")
_RANKS_AT_AN_END = 8
"""Of more than twice as many ranks, only so many at either end are drawn."""


def figures(subjects: Sequence[Subject]) -> Iterator[tuple[str, str]]:
    """Give (caption, SVG) for everything the subjects have data of."""
    for caption, drawn in _all(subjects):
        if drawn:
            yield caption, drawn


def course(subjects: Sequence[Subject]) -> Iterator[tuple[str, str]]:
    """Give (caption, SVG) of accuracy and loss, by epoch and by time."""
    references, targets = _references(subjects), _targets(subjects)
    by_epoch = [_Series(subject, _at_epoch) for subject in subjects]
    by_second = [_Series(subject, _at_second) for subject in subjects]
    yield "Accuracy by epoch", _lines("Top-1 accuracy", "epochs", by_epoch, _accuracy, [*targets, *references])
    yield "Accuracy by time", _lines("Top-1 accuracy", "seconds since run_start", by_second, _accuracy, targets)
    yield "Training loss by epoch", _lines("Loss", "epochs", by_epoch, _row("loss"))
    yield "Training loss by time", _lines("Loss", "seconds since run_start", by_second, _row("loss"))


def _all(subjects: Sequence[Subject]) -> Iterator[tuple[str, str]]:
    yield from course(subjects)
    by_epoch = [_Series(subject, _at_epoch) for subject in subjects]
    yield "Learning rate", _lines("Learning rate", "epochs", by_epoch, _row("lr"))
    yield "Throughput, images/s", _lines("Training images a second", "epochs", by_epoch, _throughput)
    yield "Where a step's time goes", bar_chart("Shares of a step's time", "% of the time", _shares(subjects), _KEY)
    yield "Evaluation time, s", _lines("Seconds of an evaluation", "epochs", by_epoch, _evaluation_s)
    for subject in subjects:
        whose = f": {subject.name}" if len(subjects) > 1 else ""
        threads = list(dict.fromkeys(str(phase["thread"]) for phase in subject.startup))
        rows = _ledger(subject, threads)
        yield f"Start-up{whose}", bar_chart("Start-up phases", "seconds since the process began", rows, threads)
    for subject in subjects:
        whose = f"{subject.name}, " if len(subjects) > 1 else ""
        chart = bar_chart("Time of a step by rank", "ms of a median step", _ranks(subject), _KEY)
        yield f"Time of a step by rank: {whose}{_slowest(subject)}", chart


class _Series:
    """A subject and the horizontal position of its things: what `_at_epoch` or `_at_second` gives."""

    def __init__(self, subject: Subject, position: Callable[[Subject, Any, Any], float | None]) -> None:
        self.subject, self._position = subject, position

    def points(self, things: Sequence[tuple[Any, Any, Any]]) -> _Points:
        """Place (epoch, seconds since run_start, value) triples."""
        placed = ((self._position(self.subject, epoch, second), to_number(value)) for epoch, second, value in things)
        return [(x, y) for x, y in placed if x is not None]


def _at_epoch(_: Subject, epoch: Any, __: Any) -> float | None:
    return to_number(epoch)


def _at_second(_: Subject, __: Any, second: Any) -> float | None:
    return to_number(second)


def _lines(
    title: str, x_name: str, placed: Sequence[_Series], things: Callable[[Subject], Any], bands: Sequence[Band] = ()
) -> str:
    series = [Series(each.subject.name, index, each.points(things(each.subject))) for index, each in enumerate(placed)]
    return line_chart(title, x_name, series, bands)


def _accuracy(subject: Subject) -> list[tuple[Any, Any, Any]]:
    return [(each.epoch, each.at_s, each.accuracy) for each in subject.record.evaluations]


def _evaluation_s(subject: Subject) -> list[tuple[Any, Any, Any]]:
    return [(each.epoch, each.at_s, each.seconds) for each in subject.record.evaluations if each.seconds is not None]


def _row(key: str) -> Callable[[Subject], list[tuple[Any, Any, Any]]]:
    """Take ``key`` of the metrics' rows, placed by images seen, not by the epoch's number, which stands still."""

    def things(subject: Subject) -> list[tuple[Any, Any, Any]]:
        record = subject.record
        size, samples, began = record.global_batch_size, record.train_samples, record.began_s
        placed = []
        for row in subject.intervals:
            step, when = to_number(row.get("step")), to_number(row.get("time"))
            epoch = (step + 1) * size / samples if step is not None and size and samples else row.get("epoch")
            placed.append((epoch, when - began if when is not None and began is not None else None, row.get(key)))
        return placed

    return things


def _throughput(subject: Subject) -> list[tuple[Any, Any, Any]]:
    """Take the metrics' rates, else those of the log's epochs, else those that the log tells."""
    record = subject.record
    if subject.intervals:
        return _row("images_per_s")(subject)
    if record.median_epoch_s is not None and record.train_samples:
        spans = [span for span in record.epoch_spans if span.end_s > span.begin_s]
        rates = [record.train_samples * span.epochs / (span.end_s - span.begin_s) for span in spans]
        return [(span.first_epoch + span.epochs - 1, span.end_s, rate) for span, rate in zip(spans, rates, strict=True)]
    return [(epoch, None, rate) for epoch, rate in record.throughputs]


def _references(subjects: Sequence[Subject]) -> list[Band]:
    """Mark where the reference converges, once for each batch size."""
    found = {place.reference for place in (subject.standing for subject in subjects) if place.reference}
    return [
        Band("x", each.least, each.mean + 2 * each.deviation, f"reference at batch {each.batch_size}")
        for each in sorted(found, key=lambda each: each.batch_size)
    ]


def _targets(subjects: Sequence[Subject]) -> list[Band]:
    targets = sorted({subject.target for subject in subjects if subject.target is not None})
    return [Band("y", target, target, f"target {target:g}") for target in targets]


def _shares(subjects: Sequence[Subject]) -> list[Bar]:
    """Cut a step into what is left over, what communication showed, and what input was waited for."""
    bars = []
    for subject in subjects:
        source = subject.summary if subject.summary.get("input_wait_fraction") is not None else {}
        source = source or (subject.intervals[-1] if subject.intervals else {})
        waiting, exposed = (to_number(source.get(key)) for key in ("input_wait_fraction", "comm_exposed_fraction"))
        if waiting is None or exposed is None:
            continue
        stretches, begin = [], 0.0
        for number, share in enumerate((max(1 - waiting - exposed, 0.0), exposed, waiting)):
            words = f"{subject.name}: {share:.1%} {_SHARES[number]}"
            stretches.append((begin, begin + 100 * share, number, words))
            begin += 100 * share
        bars.append(Bar(subject.name, stretches))
    return bars


def _ledger(subject: Subject, threads: Sequence[str]) -> list[Bar]:
    """Draw the start-up's phases, a colour a thread."""
    bars = []
    for phase in subject.startup:
        begin, end, thread = float(phase["begin_s"]), float(phase["end_s"]), str(phase["thread"])
        words = f"{phase['phase']} ({thread}): {end - begin:.2f} s from {begin:.2f} s"
        bars.append(Bar(str(phase["phase"]), [(begin, end, threads.index(thread), words)]))
    return bars


def _ranks(subject: Subject) -> list[Bar]:
    """Draw where a step's time goes on each rank, the slowest first; of many ranks the slowest and the fastest."""
    rows = sorted(subject.ranks, key=lambda row: -float(row["compute_median_s"]))
    if len(rows) > 2 * _RANKS_AT_AN_END:
        rows = [*rows[:_RANKS_AT_AN_END], *rows[-_RANKS_AT_AN_END:]]
    bars = []
    for row in rows:
        stretches, begin = [], 0.0
        for number, key in enumerate(("compute_median_s", "comm_wait_median_s", "input_wait_median_s")):
            length = 1e3 * float(row[key])
            words = f"rank {row['rank']}: {length:.1f} ms {_SHARES[number]}"
            words += f", 95th percentile {1e3 * float(row['compute_p95_s']):.1f} ms" if number == 0 else ""
            stretches.append((begin, begin + length, number, words))
            begin += length
        bars.append(Bar(f"rank {row['rank']}", stretches))
    return bars if len(bars) > 1 else []


def _slowest(subject: Subject) -> str:
    """Name the rank that computes longest."""
    times = {str(row["rank"]): float(row["compute_median_s"]) for row in subject.ranks}
    usual = median(times.values()) if times else 0.0
    if not usual:
        return "nothing was measured"
    slowest = max(times, key=lambda rank: times[rank])
    shown = f"; the {_RANKS_AT_AN_END} slowest and fastest of {len(times)}" if len(times) > 2 * _RANKS_AT_AN_END else ""
    return f"rank {slowest} computes longest, {times[slowest] / usual - 1:.1%} above the median{shown}"
