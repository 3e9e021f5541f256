"""Collects the evaluations of a log from their start, stop and accuracy events, which may come in any order."""

from collections.abc import Iterator
from typing import Any

from logs.read.lines import Event, to_number
from logs.read.record import Evaluation, as_integer, elapsed

CAP = 100_000
"""Maximum number of entries of one kind that are kept from a log. Real logs have a thousandth of this number."""


class Evaluations:
    """Evaluations by epoch.

    Several ranks may log the same evaluation. In v0.5 only the accuracy event names the epoch.
    """

    def __init__(self) -> None:
        self._rows: dict[float, dict[str, Any]] = {}
        self._open_s: float | None = None
        self._closed_s: float | None = None
        self._earlier: set[float] = set()

    def resume(self) -> None:
        """Let the epochs so far be evaluated anew: the run continues from a checkpoint that may be older."""
        self._earlier = set(self._rows)

    def start(self, event: Event) -> None:
        """Add an eval_start event."""
        if event.epoch is None:
            self._open_s, self._closed_s = event.time_s, None
        else:
            self._row(event.epoch).setdefault("begin", event.time_s)

    def stop(self, event: Event) -> None:
        """Add an eval_stop event, which may come before or after the accuracy."""
        if event.epoch is not None:
            self._row(event.epoch).setdefault("end", event.time_s)
        elif self._open_s is not None:
            self._closed_s = event.time_s
        elif self._rows:
            next(reversed(self._rows.values())).setdefault("end", event.time_s)

    def accuracy(self, event: Event) -> None:
        """Add an eval_accuracy event; of several for one epoch, the first of the last attempt counts."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("value", value.get("accuracy"))
        row = self._row(event.epoch)
        if "time" in row:
            return
        row.update(time=event.time_s, accuracy=to_number(value))
        if self._open_s is not None:
            row.setdefault("begin", self._open_s)
            if self._closed_s is not None:
                row.setdefault("end", self._closed_s)
            self._open_s = self._closed_s = None

    def first_epoch(self) -> float | None:
        """Return the lowest epoch that was evaluated, as the log numbers epochs."""
        return min((row["epoch"] for row in self._rows.values() if row["epoch"] is not None), default=None)

    def begins(self) -> Iterator[float]:
        """Yield the Unix times at which evaluations began."""
        return (row["begin"] for row in self._rows.values() if row.get("begin") is not None)

    def since(self, start: float | None, shift: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the run in order of time.

        Evaluations before run_start are left out, because they belong to the warm-up, and evaluations without an
        accuracy, because they did not finish.

        Args:
            start: Unix time of run_start. If None, no evaluation is left out as a warm-up.
            shift: Added to the epochs, so that they count from 1.
        """
        rows = [row for row in self._rows.values() if "time" in row]
        if start is not None:
            rows = [row for row in rows if row["time"] is None or row["time"] >= start]
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

    def _row(self, epoch: float | None) -> dict[str, Any]:
        key = epoch if epoch is not None else -1.0 - len(self._rows)
        if key in self._earlier:
            self._earlier.remove(key)
            del self._rows[key]
        return self._rows.setdefault(key, {"epoch": epoch}) if len(self._rows) < CAP else {}
