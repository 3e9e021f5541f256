"""Numbers over time: one JSON object a line in a run's ``metrics.jsonl``, rank 0 only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from configs.errors import UserError
from configs.plan import Position
from logs.disk import explain_disk_errors, strict_json, write_text

__all__ = ["METRICS_FILE", "RANKS_FILE", "Metrics", "MetricsWriter", "NullMetrics", "read_metrics"]

METRICS_FILE = "metrics.jsonl"
RANKS_FILE = "ranks.json"
"""Under ``ranks`` a row a rank: median and 95th percentile of its times of a step."""


class Metrics(Protocol):
    """Where the training loop puts its numbers."""

    def row(self, **values: Any) -> None:
        """Keep one row; nothing is written yet, so that a step never waits for a disk."""

    def flush(self) -> None:
        """Write the rows kept so far; call it at evaluations."""

    def close(self) -> None:
        """Write what is left and end."""


class NullMetrics:
    """The metrics of every rank but 0."""

    def row(self, **values: Any) -> None:
        """Keep nothing."""

    def flush(self) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Nothing is open."""


class MetricsWriter:
    """Appends rows to a file as strict JSON.

    A value that is not finite is written as null, and named under ``not_finite``: ``{"loss": null, "not_finite":
    {"loss": "nan"}}``.

    Args:
        path: The file, which does not exist yet, save where a run goes on.
        goes_on: Where a resumed run goes on: rows of what it will do again are dropped.

    Raises:
        UserError: The disk is full, here or at a flush.
    """

    def __init__(self, path: Path, goes_on: Position | None = None) -> None:
        self._path = path
        self._rows: list[str] = []
        assert goes_on or not path.is_file(), f"{path} is another run's"
        if goes_on and path.is_file():
            write_text(path, "".join(_line(row) for row in read_metrics(path) if _is_before(row, goes_on)))
        with explain_disk_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def row(self, **values: Any) -> None:
        """Keep one row, as a line of text: later changes to the values do not reach it."""
        self._rows.append(_line(values))

    def flush(self) -> None:
        """Write the rows kept so far."""
        with explain_disk_errors(self._path):
            self._file.write("".join(self._rows))
            self._file.flush()
        self._rows.clear()

    def close(self) -> None:
        """Write what is left and close the file."""
        with explain_disk_errors(self._path):
            try:
                self.flush()
            finally:
                self._file.close()


def _line(values: Mapping[str, Any]) -> str:
    row = strict_json(dict(values))
    odd = {key: str(float(value)) for key, value in values.items() if row[key] is None and value is not None}
    return json.dumps(row | {"not_finite": odd} if odd else row, allow_nan=False) + "\n"


def _is_before(row: Mapping[str, Any], at: Position) -> bool:
    """Tell whether a row was written before a run came to ``at``: an epoch's evaluation comes after all its steps."""
    return bool(row["epoch"] < at.epoch if row["kind"] == "evaluation" else row["step"] < at.step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a ``metrics.jsonl``, with NaN and infinities back in their places.

    A last line that a killed run cut off is left out.

    Raises:
        UserError: There is no such file, or a line before the last is not a row.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number} is not a row of metrics; the file was changed, remove that line")
        rows.append(row | {key: float(text) for key, text in row.pop("not_finite", {}).items()})
    return rows
