"""The evaluations of a log, in whatever order and form their begin, end and accuracy are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logs.read.lines import Event, to_number
from logs.read.record import Evaluation, between, whole

__all__ = ["CAP", "Evaluations"]

CAP = 100_000
"""Entries of a kind that are kept of a log; a real one has a thousandth of them."""


class Evaluations:
    """Gathers evaluations by epoch; every rank may tell of one, and v0.5 names the epoch only with the accuracy."""

    def __init__(self) -> None:
        self._rows: dict[float, dict[str, Any]] = {}
        self._open_s: float | None = None
        self._closed_s: float | None = None

    def start(self, event: Event) -> None:
        """Take in an eval_start."""
        if event.epoch is None:
            self._open_s, self._closed_s = event.time_s, None
        else:
            self._row(event.epoch).setdefault("begin", event.time_s)

    def stop(self, event: Event) -> None:
        """Take in an eval_stop, which may come before the accuracy or after it."""
        if event.epoch is not None:
            self._row(event.epoch).setdefault("end", event.time_s)
        elif self._open_s is not None:
            self._closed_s = event.time_s
        elif self._rows:
            next(reversed(self._rows.values())).setdefault("end", event.time_s)

    def accuracy(self, event: Event) -> None:
        """Take in an eval_accuracy, of each epoch the first."""
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
        """Give the first epoch that is evaluated, as the log counts."""
        return min((row["epoch"] for row in self._rows.values() if row["epoch"] is not None), default=None)

    def begins(self) -> Iterator[float]:
        """Give the times at which evaluations begin."""
        return (row["begin"] for row in self._rows.values() if row.get("begin") is not None)

    def since(self, start: float | None, shift: int) -> tuple[Evaluation, ...]:
        """List the evaluations of the run: those before run_start were warm-ups, those without accuracy unfinished."""
        rows = [row for row in self._rows.values() if "time" in row]
        if start is not None:
            rows = [row for row in rows if row["time"] is None or row["time"] >= start]
        rows.sort(key=lambda row: (row["time"] or 0.0, row["epoch"] or 0.0))
        return tuple(
            Evaluation(
                epoch=None if row["epoch"] is None else whole(row["epoch"] + shift),
                at_s=between(start, row["time"]),
                accuracy=row["accuracy"],
                seconds=between(row.get("begin"), row.get("end")),
            )
            for row in rows
        )

    def _row(self, epoch: float | None) -> dict[str, Any]:
        key = epoch if epoch is not None else -1.0 - len(self._rows)
        return self._rows.setdefault(key, {"epoch": epoch}) if len(self._rows) < CAP else {}
