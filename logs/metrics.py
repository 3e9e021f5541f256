"""A run's numbers over time: ``metrics.jsonl``, with one JSON object a line, written by rank 0."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.plan import Position
from configs.reading import is_file, patiently, read_bytes
from logs.disk import dispensable, explain_disk_errors, strict_json, write_text

METRICS_FILE = "metrics.jsonl"
RANKS_FILE = "ranks.json"
"""A file whose key ``ranks`` holds a row for each rank: median and 95th percentile of the rank's times in a step."""


class NullMetrics:
    """The interface through which the training loop writes metrics, and the metrics of every rank but 0: nothing."""

    def row(self, **values: Any) -> None:
        """Keep one row in memory, so that a step never waits for a disk."""

    def flush(self) -> None:
        """Write the rows kept so far; called at evaluations and at the end."""


class MetricsWriter(NullMetrics):
    """Appends rows to a file as strict JSON.

    JSON has no NaN and no infinity, so such a value is written as null and named under ``not_finite``:
    ``{"loss": null, "not_finite": {"loss": "nan"}}``.

    Args:
        path: The file. Without ``resume_at`` it must not exist.
        resume_at: The position at which a resumed run continues; rows of later steps are dropped, because the run
            repeats those steps. If None, the run is new.

    Raises:
        UserError: If the file cannot be made, or that of the attempt before cannot be read.
    """

    def __init__(self, path: Path, resume_at: Position | None = None) -> None:
        self._path = path
        self._rows: list[str] = []
        assert resume_at or not is_file(path), f"{path} belongs to another run"
        if resume_at and is_file(path):
            write_text(path, "".join(_line(row) for row in _whole_rows(path) if _is_before(row, resume_at)))
        with explain_disk_errors(path), path.open("ab") as file:
            self._size = file.tell()

    def row(self, **values: Any) -> None:
        """Keep one row in memory, as text, so that later changes to the values do not alter the row."""
        self._rows.append(_line(values))

    def flush(self) -> None:
        """Write the rows kept so far; a disk in trouble costs a warning, and the rows are kept for the next time."""
        content = "".join(self._rows).encode()
        with dispensable():
            with explain_disk_errors(self._path), self._path.open("ab") as file:
                if file.tell() > self._size:  # a part of the rows, from a write that failed
                    file.truncate(self._size)
                file.write(content)
            self._size += len(content)
            self._rows.clear()


def _line(values: Mapping[str, Any]) -> str:
    row = strict_json(dict(values))
    odd = {key: str(float(value)) for key, value in values.items() if row[key] is None and value is not None}
    return json.dumps(row | {"not_finite": odd} if odd else row, allow_nan=False) + "\n"


def _is_before(row: Mapping[str, Any], at: Position) -> bool:
    """Return whether a row was written before ``at``; the evaluation of an epoch comes after all steps of the epoch."""
    value, end = (row.get("epoch"), at.epoch) if row.get("kind") == "evaluation" else (row.get("step"), at.step)
    return isinstance(value, int | float) and value < end


def _whole_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``metrics.jsonl`` without lines that are none; none if there is no such file."""
    return patiently(path, MetricsFollower(path).read)


def evaluated_epochs(path: Path) -> set[int]:
    """Return the epochs, counted from 1, of the evaluations in a ``metrics.jsonl``, which may be damaged or missing."""
    rows = (row for row in _whole_rows(path) if row.get("kind") == "evaluation")
    return {row["epoch"] for row in rows if isinstance(row.get("epoch"), int)}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``metrics.jsonl``, with NaN and infinities restored.

    A last line without a line end is left out: the run was killed while writing the line.

    Raises:
        UserError: If the file cannot be read, or a line before the last is not a row.
    """
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    return [_row(line, f"{path}: line {number}") for number, line in enumerate(lines[:-1], start=1)]


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        return row | {key: float(text) for key, text in row.pop("not_finite", {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{where} is not a row of metrics; the file was changed, remove that line") from None


@dataclass
class MetricsFollower:
    """Reads a growing ``metrics.jsonl``, and keeps the last row of each kind in ``last``."""

    path: Path
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    _offset: int = 0

    def update(self) -> list[dict[str, Any]]:
        """Return the rows added since the last update; none while a file server fails: the next update tries again."""
        try:
            return self.read()
        except OSError:
            return []

    def read(self) -> list[dict[str, Any]]:
        """Return the rows added since the last time; a file that became shorter is read from the start.

        Raises:
            OSError: The file cannot be read now.
        """
        if not self.path.is_file():  # None yet; opening a pipe would wait for its writer.
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
                self.last.clear()
            file.seek(self._offset)
            added = file.read()
        whole, newline, _ = added.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        rows = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                self.last[str(row.get("kind"))] = row
                rows.append(row)
        return rows
