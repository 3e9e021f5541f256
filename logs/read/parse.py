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
_KEPT = ("submission_", "global_batch_size", "input_batch_size", "eval_offset", *_TRAIN_SAMPLES)
_ONCE = ("init_start", "init_stop", "run_start", "run_stop", "run_final")
"""Every rank may log these; the first event of each counts."""
_MARKS = ("epoch_start", "epoch_stop", "train_epoch")
"""The marks of epochs. Blocks of epochs are not read, because an evaluation ends each."""
_EVALUATED = {"eval_start": "begin", "eval_stop": "end", "eval_accuracy": "time"}
_SEEDS = ("seed", "run_set_random_seed")
_EVENTS = {*_ONCE, *_MARKS, *_EVALUATED, *_SEEDS}
_LEAST_GLOBAL_BATCH = 512
"""In v0.5, input_batch_size is the global batch in some logs, and the batch of one worker (26 to 208) in others."""
_LEAST_COVER = 0.7
"""Marks that cover a smaller share of the training time, or of the epochs, do not tell how long an epoch took.

Published logs have marks that the host wrote ahead of its GPUs (0.1 to 0.5 of the time), and marks that were all
written at the end.
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

    Several ranks may log the same evaluation. In v0.5 only the accuracy event names the epoch, so that an evaluation's
    begin and end are not known.
    """

    def __init__(self) -> None:
        self.rows: dict[float, dict[str, Any]] = {}
        self.earlier: set[float] = set()
        """Epochs that may be evaluated anew: the run continues from a checkpoint that may be older."""

    def add(self, event: Event) -> None:
        """Add an event; of several for one epoch, the first of the last attempt counts."""
        what, epoch = _EVALUATED[event.key], event.epoch
        if epoch is None and what != "time":
            return
        key = epoch if epoch is not None else -1.0 - len(self.rows)
        if key in self.earlier:
            self.earlier.remove(key)
            del self.rows[key]
        row = self.rows.setdefault(key, {"epoch": epoch})
        if what == "time" and "time" not in row:
            value = event.value
            told = value.get("value", value.get("accuracy")) if isinstance(value, dict) else value
            row["accuracy"] = to_number(told)
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
        self.last_s: float | None = None
        self.epochs: dict[float, list[float]] = {}
        """Number of an epoch as the log has it -> Unix times of its first begin and of its last end."""
        self.evaluations = _Evaluations()
        self.attempts = 1
        self.pauses: list[Pause] = []
        self._is_resuming = False
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
            self._is_resuming = True
            self.attempts += 1
        elif event.key in _EVENTS:
            # After run_stop, a slow rank or a second run in the same file may still log.
            if not self._came_later(event, "run_stop"):
                self._add_to_run(event)
                if not self._is_resuming:
                    self.last_s = max(self.last_s or 0.0, event.time_s or 0.0) or None
        elif event.key.startswith(_SETTINGS) and event.is_short:
            self.settings[event.key] = event.value
        elif event.key.startswith(_KEPT) and event.is_short:
            self.points[event.key] = event.value

    def _without_pauses(self, event: Event) -> Event:
        """Return an event with the pauses before it taken off its time; the run_start of a resumed run ends a pause."""
        if event.time_s is None:
            return event
        if event.key == "run_start" and self._is_resuming:
            if "run_start" in self.at and self.last_s is not None:
                begin_s = self.last_s + self._paused_s
                self.pauses.append(Pause(begin_s, event.time_s))
                self._paused_s += event.time_s - begin_s  # below 0 where the clock was set back meanwhile
            self._is_resuming = False
        return replace(event, time_s=event.time_s - self._paused_s) if self._paused_s else event

    def _add_to_run(self, event: Event) -> None:
        if event.key == "init_start":
            is_running = "run_stop" not in self.at and self.attempts == 1
            if is_running and self._came_later(event, "run_start"):
                self._restart()
        if event.key in _ONCE:
            self.at.setdefault(event.key, event)
        elif event.key in _MARKS:
            self._mark(event)
        elif event.key in _EVALUATED:
            self.evaluations.add(event)
        elif isinstance(event.value, int | str) and event.value not in self.seeds:
            self.seeds.append(event.value)

    def _mark(self, event: Event) -> None:
        """Add the begin or the end of an epoch; v0.5 logs no ends."""
        epoch = to_number(event.value) if event.key == "train_epoch" else event.epoch
        if epoch is None or event.time_s is None:
            return
        if event.key != "epoch_stop":
            self.epochs.setdefault(epoch, [event.time_s])
        elif span := self.epochs.get(epoch):
            span[1:] = [max([event.time_s, *span[1:]])]

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
            target=target,
            seeds=tuple(self.seeds),
            began_s=start,
            attempts=self.attempts,
            pauses=tuple(self.pauses),
            init_s=elapsed(self._time("init_start"), self._time("init_stop")),
            time_to_train_s=elapsed(start, stop),
            elapsed_s=elapsed_s,
            evaluations=evaluations,
            epoch_spans=() if start is None else self._spans(start, shift, evaluations, elapsed_s or 0.0),
            last_epoch=max(
                (as_integer(epoch + shift) for epoch, (_, *end) in self.epochs.items() if end), default=None
            ),
            settings=dict(sorted(self.settings.items())),
            unreadable=self.unreadable,
        )

    def _spans(
        self, start: float, shift: int, evaluations: Sequence[Evaluation], elapsed_s: float
    ) -> tuple[EpochSpan, ...]:
        """Return the epochs; if the marks do not cover the run, the stretches of training between evaluations."""
        found = tuple(
            EpochSpan(as_integer(epoch + shift), round(begin - start, 6), round(end[0] - start, 6))
            for epoch, (begin, *end) in sorted(self.epochs.items())
            if end and end[0] >= begin >= start
        )
        return found if _cover(found, evaluations, elapsed_s) else tuple(_between(evaluations))

    def _counts_from_zero(self) -> bool:
        """Return whether the log numbers epochs from 0, as v0.5 allowed."""
        if self.ruleset != "0.5.0" or self.epochs:
            return self.ruleset == "0.5.0" and min(self.epochs) == 0
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
