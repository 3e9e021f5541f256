"""Lines of MLPerf logs, anybody's, as events: the dialects of v0.5, v0.6, and v0.7 onwards, in streaming.

Made for what is found in the wild: text before the token, several records on a line, records cut off or run through by
another rank's, values that are not JSON. What cannot be read is counted and passed over, never raised.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from configs.errors import UserError

__all__ = ["ROUNDS", "Event", "find_ruleset", "parse_text", "read_events", "ruleset_at", "to_number"]

_TOKEN = re.compile(r":::(?:(MLLOG)|(MLL)|MLPv(\d+\.\d+)\.\d+ +(\w+))[ \t]+")
_MLL = re.compile(r"(\S+)[ \t]+(\w+)(?::[ \t]*)?")
_MLP = re.compile(r"(\S+)[ \t]+\(([^)\n]*)\)[ \t]+(\w+)(?::[ \t]*)?")
_DECODER = json.JSONDecoder()
_SHORT = 200
_LINE_BYTES = 1 << 20
"""Longer lines are read in pieces, so that a file without line ends does not fill the memory."""
_EPOCH_2015_S = 1.42e9
"""Earlier times are place-holders: some submitters add their name to the log with time 0."""

ROUNDS = (
    ("0.7.0", "2020-07-29"), ("1.0.0", "2021-06-30"), ("1.1.0", "2021-12-01"), ("2.0.0", "2022-06-29"),
    ("2.1.0", "2022-11-09"), ("3.0.0", "2023-06-27"), ("3.1.0", "2023-11-08"), ("4.0.0", "2024-06-12"),
)  # fmt: skip
"""Ruleset -> the day its round was published (UTC). A `:::MLLOG` log does not name its ruleset; its date does."""


@dataclass(frozen=True)
class Event:
    """One record of a log.

    Attributes:
        time_s: Unix seconds; None where the log has none or a place-holder.
        ruleset: ``0.5.0``, ``0.6.0``, or None for the dialect that v0.7 to v4.0 share.
        benchmark: Named in each line of v0.5, and None elsewhere.
    """

    key: str
    value: Any
    metadata: dict[str, Any]
    time_s: float | None
    ruleset: str | None
    benchmark: str | None = None

    @property
    def epoch(self) -> float | None:
        """The epoch that the event is of, as the log counts; in v0.5 it stands in the value."""
        epoch = to_number(self.metadata.get("epoch_num"))
        return to_number(self.value.get("epoch")) if epoch is None and isinstance(self.value, dict) else epoch

    @property
    def is_short(self) -> bool:
        """Tell whether the value is worth keeping: a number, or a short text or list."""
        value = self.value
        return len(value) <= _SHORT if isinstance(value, str | list) else isinstance(value, int | float)


def read_events(path: Path) -> Iterator[Event | None]:
    """Read a log's events in the order of the file; None stands for a record that cannot be read.

    Holds one line at a time, of at most 1 MiB.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(_LINE_BYTES):
                if b":::ML" in line:
                    yield from parse_text(line.decode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a run folder or a log file") from None


def parse_text(text: str) -> Iterator[Event | None]:
    """Find the events in a piece of text; None for each token that no readable record follows."""
    position = 0
    while token := _TOKEN.search(text, position):
        event, position = _record(token, text)
        yield event


def ruleset_at(time_s: float | None) -> str:
    """Name the ruleset in force at ``time_s`` (Unix seconds) for a log of the newest dialect; the last by default."""
    if time_s is not None and time_s < 1e11:  # noqa: PLR2004 (beyond what a datetime can hold)
        day = datetime.fromtimestamp(time_s, timezone.utc).date().isoformat()
        for ruleset, published in ROUNDS:
            if day <= published:
                return ruleset
    return ROUNDS[-1][0]


def find_ruleset(path: Path) -> str | None:
    """Name the ruleset of a log from its first event that has a time; None if it has no event at all.

    Raises:
        UserError: The file cannot be read.
    """
    found = None
    for event in read_events(path):
        if event is None:
            continue
        if event.ruleset or event.time_s is not None:
            return event.ruleset or ruleset_at(event.time_s)
        found = ROUNDS[-1][0]
    return found


def to_number(value: Any) -> float | None:
    """Read a finite number, also from text; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _record(token: re.Match[str], text: str) -> tuple[Event | None, int]:
    """Read the record after ``token``; give it and where to go on."""
    begin = token.end()
    if token[1]:
        record, end = _json(text, begin)
        return (_of_mllog(record), end) if isinstance(record, dict) else (None, begin)
    head = (_MLL if token[2] else _MLP).match(text, begin)
    if head is None:
        return None, begin
    following = _TOKEN.search(text, head.end())
    rest = text[head.end() : following.start() if following else len(text)].strip()
    value, end = _json(text, head.end()) if rest else (None, head.end())
    if token[2]:
        if end < head.end() or not (value is None or isinstance(value, dict)):
            return None, begin
        return _of_mll(head, value or {}), end
    # v0.5 has plain text as well as JSON after the key.
    plain = value if end >= head.end() else rest
    time_s = _time(head[1], 1.0)
    return Event(head[3], plain, {}, time_s, f"{token[3]}.0", token[4]), max(end, head.end())


def _of_mllog(record: dict[str, Any]) -> Event | None:
    key, metadata = record.get("key"), record.get("metadata")
    if not isinstance(key, str):
        return None
    kept = metadata if isinstance(metadata, dict) else {}
    return Event(key, record.get("value"), kept, _time(record.get("time_ms"), 1000.0), None)


def _of_mll(head: re.Match[str], record: dict[str, Any]) -> Event:
    metadata = record.get("metadata")
    return Event(
        head[2], record.get("value"), metadata if isinstance(metadata, dict) else {}, _time(head[1], 1.0), "0.6.0"
    )


def _json(text: str, begin: int) -> tuple[Any, int]:
    """Decode the JSON value at ``begin``; give it and its end, or (None, -1)."""
    try:
        return _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, -1


def _time(value: Any, per_second: float) -> float | None:
    number = to_number(value)
    return number / per_second if number is not None and number / per_second > _EPOCH_2015_S else None
