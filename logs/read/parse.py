"""Reads an MLPerf log of rounds v0.5 to v4.0, from any submitter, into a `RunRecord`. The only parser of logs.

The parser keeps epochs, evaluations and hyperparameters, so that memory does not grow with the other lines of a log.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from configs.reading import is_file
from logs.read.lines import Event, read_events, ruleset_at, to_number
from logs.read.record import EpochSpan, Evaluation, Pause, RunRecord, as_integer, elapsed

_SETTINGS = ("opt_", "lars_", "sgd_", "model_bn_span", "gradient_accumulation", "label_smoothing", "eval_target")
_TRAIN_SAMPLES = ("train_samples", "preproc_num_train_examples", "num_train_examples")
_EVAL_SAMPLES = ("eval_samples", "preproc_num_eval_examples", "num_eval_examples")
_KEPT = ("submission_", "global_batch_size", "input_batch_size", "eval_offset", *_TRAIN_SAMPLES, *_EVAL_SAMPLES)
_ONCE = ("init_start", "init_stop", "run_start", "run_stop", "run_final")
"""Every rank may log these; the first event of each counts."""
_MARKS = ("epoch_start", "epoch_stop", "block_start", "block_stop", "train_epoch")
_EVALUATED = {"eval_start": "begin", "eval_stop": "end", "eval_accuracy": "time"}
_SEEDS = ("seed", "run_set_random_seed")
_EVENTS = {*_ONCE, *_MARKS, *_EVALUATED, *_SEEDS, "tracked_stats"}
_LEAST_GLOBAL_BATCH = 512
"""In v0.5, input_batch_size is the global batch in some logs, and the batch of one worker (26 to 208) in others."""
_LEAST_COVER = 0.7
"""Marks that cover a smaller share of the training time, or of the epochs, do not tell how long an epoch took.

Published logs have marks that the host wrote ahead of its GPUs (0.1 to 0.5 of the time), marks that were all written at
the end, and blocks of one epoch that repeat their number.
"""


def parse_log(path: Path) -> RunRecord:
    """Return the content of a log.

    Raises:
        UserError: If the file cannot be read.
    """
    return parse_events(read_events(path), path)


def logged_epochs(path: Path) -> set[int]:
    """Return the epochs, counted from 1, of the evaluations in a log of this program, which may be missing.

    Raises:
        UserError: If the file cannot be read.
    """
    evaluations = parse_log(path).evaluations if is_file(path) else ()
    return {int(each.epoch) for each in evaluations if each.epoch is not None}


def parse_events(events: Iterable[Event | None], source: Path) -> RunRecord:
    """Return the content of a log from its events; None counts as an unreadable record."""
    parser = _Parser()
    for event in events:
        parser.add(event)
    return parser.record(source)


class _Evaluations:
    """Evaluations by epoch, from their start, stop and accuracy events, which may come in any order.

    Several ranks may log the same evaluation. In v0.5 only the accuracy event names the epoch.
    """

    def __init__(self) -> None:
        self.rows: dict[float, dict[str, Any]] = {}
        self.earlier: set[float] = set()
        """Epochs that may be evaluated anew: the run continues from a checkpoint that may be older."""
        self._without_epoch: dict[str, Any] = {}

    def add(self, event: Event) -> None:
        """Add an event; of several for one epoch, the first of the last attempt counts."""
        what, epoch = _EVALUATED[event.key], event.epoch
        if epoch is None and what == "begin":
            self._without_epoch = {"begin": event.time_s}
        elif epoch is None and what == "end":
            last = next(reversed(self.rows.values()), {})
            (self._without_epoch or last).setdefault("end", event.time_s)
        else:
            key = epoch if epoch is not None else -1.0 - len(self.rows)
            if key in self.earlier:
                self.earlier.remove(key)
                del self.rows[key]
            row = self.rows.setdefault(key, {"epoch": epoch})
            if what == "time" and "time" not in row:
                value = event.value
                row["accuracy"] = to_number(
                    value.get("value", value.get("accuracy")) if isinstance(value, dict) else value
                )
                row.update({**self._without_epoch, **row})
                self._without_epoch = {}
            row.setdefault(what, event.time_s)

    def since(self, start: float | None, shift: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the run in order of time.

        Evaluations before run_start are left out, because they belong to the warm-up, and evaluations without an
        accuracy, because they did not finish.

        Args:
            start: Unix time of run_start. If None, no evaluation is left out as a warm-up.
            shift: Added to the epochs, so that they count from 1.
        """
        rows = [row for row in self.rows.values() if "time" in row]
        rows = [row for row in rows if start is None or row["time"] is None or row["time"] >= start]
        rows.sort(key=lambda row: (row["time"] or 0.0, row["epoch"] or 0.0))
        return tuple(
            Evaluation(
                epoch=None if row["epoch"] is None else as_integer(row["epoch"] + shift),
                at_s=elapsed(start, row["time"]),
                accuracy=row["accuracy"],
                seconds=elapsed(row.get("begin"), row.get("end")),
            )
            for row in rows
        )


class _Spans:
    """The marks of epochs and blocks: Unix times, by the number of the first epoch as the log has it."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[float, list[float]]] = {"epoch": {}, "block": {}}
        self._counts: dict[float, float] = {}
        self._open_epoch: float | None = None

    def add(self, event: Event) -> None:
        """Add an event that begins or ends an epoch or a block: the first begin of an epoch counts, and the last end.

        v0.5 logs no end of an epoch: the next epoch or an evaluation ends it.
        """
        kind, is_old = event.key.partition("_")[0], event.key == "train_epoch"
        epoch = event.epoch if kind == "epoch" else to_number(event.metadata.get("first_epoch_num"))
        if is_old:
            self.close(event.time_s)
            kind, epoch = "epoch", to_number(event.value)
        if epoch is None or event.time_s is None:
            return
        if is_old or event.key.endswith("_start"):
            self._open_epoch = epoch if is_old else None
            if kind == "block":
                self._counts[epoch] = to_number(event.metadata.get("epoch_count")) or 1.0
            self.marks[kind].setdefault(epoch, [event.time_s])
        elif span := self.marks[kind].get(epoch):
            span[1:] = [max([event.time_s, *span[1:]])]

    def close(self, time_s: float | None) -> None:
        """End the open epoch of v0.5."""
        span = self.marks["epoch"].get(self._open_epoch) if self._open_epoch is not None else None
        if span and len(span) == 1 and time_s is not None:
            span.append(time_s)
        self._open_epoch = None

    def ended(self, shift: int, begins: Sequence[float] = ()) -> Iterator[tuple[float, float, float, float]]:
        """Yield (first epoch, begin, end, number of epochs): epochs, or blocks if no epoch has an end.

        Args:
            shift: Added to epochs, so that they count from 1.
            begins: Unix times at which evaluations began; a block counts up to its evaluation.
        """
        if any(len(span) > 1 for span in self.marks["epoch"].values()):
            spans = [(epoch, span) for epoch, span in self.marks["epoch"].items() if len(span) > 1]
            yield from ((epoch + shift, span[0], span[1], 1.0) for epoch, span in spans)
            return
        for epoch, (begin, *end) in self.marks["block"].items():
            inside = [at for at in begins if end and begin < at < end[0]]
            if end:
                yield epoch, begin, min(inside) if inside else end[0], self._counts[epoch]


def _cover(spans: Sequence[EpochSpan], evaluations: Sequence[Evaluation], elapsed_s: float) -> bool:
    """Return whether spans cover most of the training time and most of the epochs that were evaluated."""
    covered_s = sum(span.end_s - span.begin_s for span in spans)
    training_s = elapsed_s - sum(each.seconds or 0 for each in evaluations)
    evaluated = max((each.epoch for each in evaluations if each.epoch is not None), default=0)
    return covered_s >= _LEAST_COVER * training_s and sum(span.epochs for span in spans) >= _LEAST_COVER * evaluated


def _between(evaluations: Sequence[Evaluation]) -> Iterator[EpochSpan]:
    """Yield the stretches from run_start to the first evaluation, and from each evaluation to the next."""
    epoch, begin_s = 0.0, 0.0
    for each in evaluations:
        if each.epoch is not None and each.at_s is not None and each.epoch > epoch:
            end_s = max(each.at_s - (each.seconds or 0.0), begin_s)
            yield EpochSpan(as_integer(epoch + 1), round(begin_s, 6), round(end_s, 6), each.epoch - epoch)
            epoch, begin_s = float(each.epoch), each.at_s


class _Parser:
    """Collects events. Times are Unix seconds until `record` turns them into seconds since run_start.

    Of a resumed run, times after a pause are earlier by the length of the pause, as if the run had gone on at once.
    """

    def __init__(self) -> None:
        self.unreadable = 0
        self.ruleset: str | None = None
        self.first_s: float | None = None
        self.points: dict[str, Any] = {}
        self.seeds: list[int | str] = []
        self.settings: dict[str, Any] = {}
        self._restart()

    def _restart(self) -> None:
        """Discard the events of a run, because a log may contain a run that was started again."""
        self.at: dict[str, Event] = {}
        self.init_starts_s: list[float | None] = []
        self.last_s: float | None = None
        self.spans = _Spans()
        self.evaluations = _Evaluations()
        self.throughputs: dict[float, float] = {}
        self.attempts = 1
        self.pauses: list[Pause] = []
        self._resumed_at: Event | None = None
        self._paused_s = 0.0

    def add(self, event: Event | None) -> None:
        """Add the next event of the file."""
        if event is None:
            self.unreadable += 1
            return
        self.ruleset = self.ruleset or event.ruleset
        if event.benchmark:
            self.points.setdefault("submission_benchmark", event.benchmark)
        self.first_s = event.time_s if self.first_s is None else self.first_s
        event = self._without_pauses(event)
        if event.key == "resumed_from_step":
            # A key of this program: the earlier attempt was stopped, and the same run continues here.
            self.at.pop("run_stop", None)
            self.evaluations.earlier = set(self.evaluations.rows)
            self._resumed_at = event
            self.attempts += 1
            self.init_starts_s = []
        elif event.key in _EVENTS:
            # After run_stop, a slow rank or a second run in the same file may still log.
            if not self._came_later(event, "run_stop"):
                self._add_to_run(event)
                if self._resumed_at is None:
                    self.last_s = max(self.last_s or 0.0, event.time_s or 0.0) or None
        elif event.key.startswith(_SETTINGS) and event.is_short:
            self.settings[event.key] = event.value
        elif event.key.startswith(_KEPT) and event.is_short:
            self.points[event.key] = event.value

    def _without_pauses(self, event: Event) -> Event:
        """Return an event with the pauses before it taken off its time; the run_start of a resumed run ends a pause."""
        if event.time_s is None:
            return event
        if event.key == "run_start" and self._resumed_at is not None:
            if "run_start" in self.at and self.last_s is not None:
                begin_s = self.last_s + self._paused_s
                self.pauses.append(Pause(begin_s, max(begin_s, event.time_s), to_number(self._resumed_at.value)))
                self._paused_s += event.time_s - begin_s  # below 0 where the clock was set back meanwhile
            self._resumed_at = None
        return replace(event, time_s=event.time_s - self._paused_s) if self._paused_s else event

    def _add_to_run(self, event: Event) -> None:
        if event.key == "init_start":
            is_running = "run_stop" not in self.at and self.attempts == 1
            if is_running and self._came_later(event, "run_start"):
                self._restart()
            self.init_starts_s.append(event.time_s)
        if event.key in ("run_stop", "eval_start"):
            self.spans.close(event.time_s)
        if event.key in _ONCE:
            self.at.setdefault(event.key, event)
        elif event.key in _MARKS:
            self.spans.add(event)
        elif event.key in _EVALUATED:
            self.evaluations.add(event)
        elif event.key in _SEEDS:
            if isinstance(event.value, int | str) and event.value not in self.seeds:
                self.seeds.append(event.value)
        elif isinstance(event.value, dict) and (rate := to_number(event.value.get("throughput"))) is not None:
            self.throughputs[len(self.throughputs) + 1.0 if event.epoch is None else event.epoch] = rate

    def _came_later(self, event: Event, key: str) -> bool:
        then = self._time(key)
        return event.time_s is not None and then is not None and event.time_s > then

    def _time(self, key: str) -> float | None:
        return self.at[key].time_s if key in self.at else None

    def record(self, source: Path) -> RunRecord:
        """Return the content of the log."""
        start, stop = self._time("run_start"), self._time("run_stop" if "run_stop" in self.at else "run_final")
        shift = 1 if self._counts_from_zero() else 0
        evaluations = self.evaluations.since(start, shift)
        elapsed_s = elapsed(start, max((at for at in (stop, self.last_s) if at is not None), default=None))
        target = to_number(self.settings.get("eval_target"))
        is_known = self.first_s is not None or bool(self.ruleset or self.points or self.at)
        told = {key: self.points.get(f"submission_{key}") for key in ("org", "benchmark", "division", "platform")}
        texts = {key: value if isinstance(value, str) and value else None for key, value in told.items()}
        old_batch = self._integer("input_batch_size") or 0
        starts_s = [at for at in self.init_starts_s if at is not None]
        return RunRecord(
            source=source,
            ruleset=(self.ruleset or ruleset_at(self.first_s)) if is_known else None,
            submitter=texts["org"],
            benchmark=texts["benchmark"],
            division=texts["division"],
            platform=texts["platform"],
            status=self._status(evaluations, target),
            global_batch_size=self._integer("global_batch_size")
            or (old_batch if old_batch >= _LEAST_GLOBAL_BATCH else None),
            train_samples=self._integer(*_TRAIN_SAMPLES),
            eval_samples=self._integer(*_EVAL_SAMPLES),
            target=target,
            seeds=tuple(self.seeds),
            began_s=start,
            attempts=self.attempts,
            pauses=tuple(self.pauses),
            init_starts=(len(self.init_starts_s), elapsed(starts_s[0], max(starts_s)) or 0.0 if starts_s else 0.0),
            init_s=elapsed(self._time("init_start"), self._time("init_stop")),
            time_to_train_s=elapsed(start, stop),
            elapsed_s=elapsed_s,
            evaluations=evaluations,
            epoch_spans=() if start is None else self._spans(start, shift, evaluations, elapsed_s or 0.0),
            last_epoch=max(
                (as_integer(first + count - 1) for first, *_, count in self.spans.ended(shift)), default=None
            ),
            throughputs=tuple(sorted(self.throughputs.items())),
            settings=dict(sorted(self.settings.items())),
            unreadable=self.unreadable,
        )

    def _spans(
        self, start: float, shift: int, evaluations: Sequence[Evaluation], elapsed_s: float
    ) -> tuple[EpochSpan, ...]:
        """Return the epochs; if the marks do not cover the run, the stretches of training between evaluations."""
        begins = [row["begin"] for row in self.evaluations.rows.values() if row.get("begin") is not None]
        found = tuple(
            EpochSpan(as_integer(epoch), round(begin - start, 6), round(end - start, 6), count)
            for epoch, begin, end, count in sorted(self.spans.ended(shift, begins))
            if end >= begin >= start
        )
        return found if _cover(found, evaluations, elapsed_s) else tuple(_between(evaluations))

    def _counts_from_zero(self) -> bool:
        """Return whether the log numbers epochs from 0, as v0.5 allowed."""
        if self.ruleset != "0.5.0" or self.spans.marks["epoch"]:
            return self.ruleset == "0.5.0" and min(self.spans.marks["epoch"]) == 0
        # Without epoch events: eval_offset is the first evaluated epoch, numbered from 0.
        epochs = [row["epoch"] for row in self.evaluations.rows.values() if row["epoch"] is not None]
        return min(epochs, default=None) == to_number(self.points.get("eval_offset"))

    def _status(self, evaluations: Sequence[Evaluation], target: float | None) -> Literal["success", "aborted"] | None:
        stop = self.at.get("run_stop")
        if stop is None:
            return None
        status = stop.metadata.get("status")
        if status is None and isinstance(stop.value, dict):
            status = stop.value.get("status", stop.value.get("success"))
        if status is None:
            reached = max((each.accuracy for each in evaluations if each.accuracy is not None), default=None)
            return None if reached is None or target is None else "success" if reached >= target else "aborted"
        return "success" if str(status).lower() in ("success", "true") else "aborted"

    def _integer(self, *keys: str) -> int | None:
        numbers = (to_number(self.points.get(key)) for key in keys)
        return next((int(number) for number in numbers if number is not None), None)
