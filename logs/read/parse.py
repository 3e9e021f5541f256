"""Reads an MLPerf log of rounds v0.5 to v4.0, from any submitter, into a `RunRecord`. The only parser of logs.

Memory does not grow with the log: the parser keeps epochs, evaluations and hyperparameters, at most `CAP` of each.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from logs.read.evaluations import CAP, Evaluations
from logs.read.lines import Event, read_events, ruleset_at, to_number
from logs.read.record import Evaluation, RunRecord, elapsed
from logs.read.spans import Spans

_Status = Literal["success", "aborted"] | None

_SETTINGS = ("opt_", "lars_", "sgd_", "model_bn_span", "gradient_accumulation", "label_smoothing", "eval_target")
_LEAST_GLOBAL_BATCH = 512
"""In v0.5, input_batch_size is the global batch in some logs, and the batch of one worker (26 to 208) in others."""


def parse_log(path: Path) -> RunRecord:
    """Return the content of a log.

    Raises:
        UserError: If the file cannot be read.
    """
    return parse_events(read_events(path), path)


def parse_events(events: Iterable[Event | None], source: Path) -> RunRecord:
    """Return the content of a log from its events; None counts as an unreadable record."""
    parser = _Parser()
    for event in events:
        parser.add(event)
    return parser.record(source)


class _Parser:
    """Collects events. Times are Unix seconds until `record` turns them into seconds since run_start."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.ruleset: str | None = None
        self.first_s: float | None = None
        self.points: dict[str, Any] = {}
        self.seeds: list[int | str] = []
        self.settings: dict[str, Any] = {}
        self._handlers: dict[str, Callable[[Event], None]] = {
            "init_start": self._init_start,
            "init_stop": self._once,
            "run_start": self._once,
            "run_stop": self._once,
            "run_final": self._once,
            "epoch_start": self._span,
            "epoch_stop": self._span,
            "block_start": self._span,
            "block_stop": self._span,
            "train_epoch": self._span,
            "eval_start": self._eval_start,
            "eval_stop": self._eval_stop,
            "eval_accuracy": self._eval_accuracy,
            "tracked_stats": self._tracked,
            "seed": self._seed,
            "run_set_random_seed": self._seed,
        }
        self._restart()

    def _restart(self) -> None:
        """Discard the events of a run, because a log may contain a run that was started again."""
        self.at: dict[str, Event] = {}
        self.attempts = 1
        self.init_starts, self.init_spread_s = 0, 0.0
        self._first_init_s: float | None = None
        self.last_s: float | None = None
        self.spans = Spans()
        self.evaluations = Evaluations()
        self.throughputs: dict[float, float] = {}
        self._is_resumed = False

    def add(self, event: Event | None) -> None:
        """Add the next event of the file."""
        if event is None:
            self.unreadable += 1
            return
        self.ruleset = self.ruleset or event.ruleset
        if event.benchmark:
            self.points.setdefault("submission_benchmark", event.benchmark)
        if event.time_s is not None:
            self.first_s = event.time_s if self.first_s is None else self.first_s
        if event.key == "resumed_from_step":
            # A key of this program: the earlier attempt was stopped, and the same run continues here.
            self.at.pop("run_stop", None)
            self._is_resumed = True
            self.evaluations.resume()
            self.attempts += 1
            self.init_starts, self.init_spread_s, self._first_init_s = 0, 0.0, None
        elif event.key in self._handlers:
            if not self._is_after_the_end(event):
                self._handlers[event.key](event)
                self.last_s = max(self.last_s or 0.0, event.time_s or 0.0) or None
        elif len(self.settings) < CAP and event.key.startswith(_SETTINGS) and event.is_short:
            self.settings[event.key] = event.value
        elif event.key in _POINTS and event.is_short:
            self.points[event.key] = event.value

    def _is_after_the_end(self, event: Event) -> bool:
        """Return whether an event comes after run_stop: a slow rank or a second run in the same file may still log."""
        return "run_stop" in self.at and self._came_later(event, "run_stop")

    def _init_start(self, event: Event) -> None:
        is_restarted = "run_start" in self.at and "run_stop" not in self.at and not self._is_resumed
        if is_restarted and self._came_later(event, "run_start"):
            self._restart()
        self._once(event)
        self.init_starts += 1
        self._first_init_s = event.time_s if self._first_init_s is None else self._first_init_s
        self.init_spread_s = max(self.init_spread_s, elapsed(self._first_init_s, event.time_s) or 0.0)

    def _came_later(self, event: Event, key: str) -> bool:
        then = self.at[key].time_s
        return event.time_s is not None and then is not None and event.time_s > then

    def _once(self, event: Event) -> None:
        """Keep the first event of a key that every rank may log."""
        if event.key == "run_stop":
            self.spans.close(event.time_s)
        self.at.setdefault(event.key, event)

    def _seed(self, event: Event) -> None:
        if isinstance(event.value, int | str) and event.value not in self.seeds and len(self.seeds) < CAP:
            self.seeds.append(event.value)

    def _span(self, event: Event) -> None:
        self.spans.add(event)

    def _eval_start(self, event: Event) -> None:
        self.spans.close(event.time_s)
        self.evaluations.start(event)

    def _eval_stop(self, event: Event) -> None:
        self.evaluations.stop(event)

    def _eval_accuracy(self, event: Event) -> None:
        self.evaluations.accuracy(event)

    def _tracked(self, event: Event) -> None:
        rate = to_number(event.value.get("throughput")) if isinstance(event.value, dict) else None
        if rate is not None and len(self.throughputs) < CAP:
            self.throughputs[len(self.throughputs) + 1.0 if event.epoch is None else event.epoch] = rate

    def record(self, source: Path) -> RunRecord:
        """Return the content of the log."""
        start, stop = self._time("run_start"), self._time("run_stop")
        if stop is None and "run_stop" not in self.at:
            stop = self._time("run_final")
        shift = 1 if self._counts_from_zero() else 0
        evaluations = self.evaluations.since(start, shift)
        ends = [value for value in (stop, self.last_s) if value is not None]
        elapsed_s = elapsed(start, max(ends, default=None))
        points = self.points
        target = to_number(self.settings.get("eval_target"))
        known = any(value is not None for value in (self.first_s, self.ruleset)) or bool(points or self.at)
        return RunRecord(
            source=source,
            ruleset=(self.ruleset or ruleset_at(self.first_s)) if known else None,
            submitter=_text(points.get("submission_org")),
            benchmark=_text(points.get("submission_benchmark")),
            division=_text(points.get("submission_division")),
            platform=_text(points.get("submission_platform")),
            status=self._status(evaluations, target),
            global_batch_size=_integer(points, "global_batch_size") or self._old_batch(),
            train_samples=_integer(points, "train_samples", "preproc_num_train_examples", "num_train_examples"),
            eval_samples=_integer(points, "eval_samples", "preproc_num_eval_examples", "num_eval_examples"),
            target=target,
            seeds=tuple(self.seeds),
            began_s=start,
            attempts=self.attempts,
            init_starts=(self.init_starts, self.init_spread_s),
            init_s=elapsed(self._time("init_start"), self._time("init_stop")),
            time_to_train_s=elapsed(start, stop),
            elapsed_s=elapsed_s,
            evaluations=evaluations,
            epoch_spans=self.spans.since(start, shift, self.evaluations, evaluations, elapsed_s or 0.0),
            last_epoch=self.spans.last_epoch(shift),
            throughputs=tuple(sorted(self.throughputs.items())),
            settings=dict(sorted(self.settings.items())),
            unreadable=self.unreadable,
        )

    def _time(self, key: str) -> float | None:
        return self.at[key].time_s if key in self.at else None

    def _old_batch(self) -> int | None:
        size = _integer(self.points, "input_batch_size")
        return size if size is not None and size >= _LEAST_GLOBAL_BATCH else None

    def _counts_from_zero(self) -> bool:
        """Return whether the log numbers epochs from 0, as v0.5 allowed."""
        if self.ruleset != "0.5.0":
            return False
        if (first := self.spans.first_epoch()) is not None:
            return first == 0
        # Without epoch events: eval_offset is the first evaluated epoch, numbered from 0.
        return self.evaluations.first_epoch() == to_number(self.points.get("eval_offset"))

    def _status(self, evaluations: tuple[Evaluation, ...], target: float | None) -> _Status:
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


_POINTS = frozenset(
    {
        "submission_org",
        "submission_benchmark",
        "submission_division",
        "submission_platform",
        "global_batch_size",
        "train_samples",
        "eval_samples",
        "preproc_num_train_examples",
        "preproc_num_eval_examples",
        "num_train_examples",
        "num_eval_examples",
        "input_batch_size",
        "eval_offset",
    }
)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _integer(points: dict[str, Any], *keys: str) -> int | None:
    numbers = (to_number(points.get(key)) for key in keys)
    return next((int(number) for number in numbers if number is not None), None)
