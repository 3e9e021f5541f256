"""Reads MLPerf logs of any submitter line by line, in the three formats: of v0.5, of v0.6, and of v0.7 to v4.0.

Published logs have text before the token, several records on a line, records that are cut off or mixed with the record
of another rank, and values that are not JSON. A record that cannot be read is counted and skipped; it raises no error.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.reading import patiently

_TOKEN = re.compile(r":::(?:(MLLOG)|(MLL)|MLPv(\d+\.\d+)\.\d+ +(\w+))[ \t]+")
_MLL = re.compile(r"(\S+)[ \t]+(\w+)(?::[ \t]*)?")
_MLP = re.compile(r"(\S+)[ \t]+\(([^)\n]*)\)[ \t]+(\w+)(?::[ \t]*)?")
_DECODER = json.JSONDecoder()
_SHORT = 200
_LINE_BYTES = 1 << 20
"""A longer line is read in pieces, so that a file without line ends does not fill the memory."""
_MOST_BYTES = 1 << 30
"""More than any log has; the official checker keeps a whole log in memory."""
_EPOCH_2015_S = 1.42e9
"""Earlier times are placeholders: some submitters add their name to the log with time 0."""

ROUNDS = (
    ("0.7.0", "2020-07-29"),
    ("1.0.0", "2021-06-30"),
    ("1.1.0", "2021-12-01"),
    ("2.0.0", "2022-06-29"),
    ("2.1.0", "2022-11-09"),
    ("3.0.0", "2023-06-27"),
    ("3.1.0", "2023-11-08"),
    ("4.0.0", "2024-06-12"),
)
"""(ruleset, day on which the results of the round were published, UTC).

A `:::MLLOG` log does not name a ruleset, so the date of the run decides.
"""


@dataclass(frozen=True)
class Event:
    """One record of a log.

    Attributes:
        time_s: Unix seconds; None if the log has no time or a placeholder.
        ruleset: ``0.5.0``, ``0.6.0``, or None for the format that v0.7 to v4.0 share.
        benchmark: Each line of v0.5 names the benchmark; None in the other formats.
    """

    key: str
    value: Any
    metadata: dict[str, Any]
    time_s: float | None
    ruleset: str | None
    benchmark: str | None = None

    @property
    def epoch(self) -> float | None:
        """The epoch that the event belongs to, as the log numbers epochs; v0.5 has the epoch in the value."""
        epoch = to_number(self.metadata.get("epoch_num"))
        return to_number(self.value.get("epoch")) if epoch is None and isinstance(self.value, dict) else epoch

    @property
    def is_short(self) -> bool:
        """Whether the value is a number, or a text or list of at most 200 elements."""
        value = self.value
        return len(value) <= _SHORT if isinstance(value, str | list) else isinstance(value, int | float)


def read_events(path: Path) -> Iterator[Event | None]:
    """Yield a log's events in the order of the file, and None for each record that cannot be read.

    At most 1 MiB of the file is in memory at a time.

    Raises:
        UserError: If the file cannot be read, or is larger than any log.
    """
    try:
        with patiently(path, lambda: path.open("rb")) as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise UserError(f"{path}: is larger than {_MOST_BYTES:,} bytes; give the log of a run")
            while line := file.readline(_LINE_BYTES):
                if b":::ML" in line:
                    yield from parse_text(line.decode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a run folder or a log file") from None


def parse_text(text: str) -> Iterator[Event | None]:
    """Yield the events in a piece of text, and None for each token without a readable record behind it."""
    position = 0
    while token := _TOKEN.search(text, position):
        event, position = _read_record(token, text)
        yield event


def ruleset_at(time_s: float | None) -> str:
    """Return the ruleset of a ``:::MLLOG`` log of that time.

    Args:
        time_s: Unix seconds. If None, or later than the last round, the result is the last ruleset.
    """
    if time_s is not None and time_s < 1e11:  # noqa: PLR2004 (beyond what a datetime can hold)
        day = datetime.fromtimestamp(time_s, timezone.utc).date().isoformat()
        for ruleset, published in ROUNDS:
            if day <= published:
                return ruleset
    return ROUNDS[-1][0]


def to_number(value: Any) -> float | None:
    """Return ``value``, a number or a text, as a finite number; None if this is not possible."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_record(token: re.Match[str], text: str) -> tuple[Event | None, int]:
    """Return the record after ``token``, None if unreadable, and the position behind the record."""
    begin = token.end()
    if token[1]:
        record, end = _json(text, begin)
        if not isinstance(record, dict):
            return None, begin
        key, time_s = record.get("key"), _time(record.get("time_ms"), 1000.0)
        return (_event(key, record, time_s, None) if isinstance(key, str) else None), end
    head = (_MLL if token[2] else _MLP).match(text, begin)
    if head is None:
        return None, begin
    following = _TOKEN.search(text, head.end())
    rest = text[head.end() : following.start() if following else len(text)].strip()
    value, end = _json(text, head.end()) if rest else (None, head.end())
    if token[2]:
        if end < head.end() or not (value is None or isinstance(value, dict)):
            return None, begin
        return _event(head[2], value or {}, _time(head[1], 1.0), "0.6.0"), end
    # In v0.5 the key is followed by JSON or by plain text.
    plain = value if end >= head.end() else rest
    time_s = _time(head[1], 1.0)
    return Event(head[3], plain, {}, time_s, f"{token[3]}.0", token[4]), max(end, head.end())


def _event(key: str, record: dict[str, Any], time_s: float | None, ruleset: str | None) -> Event:
    metadata = record.get("metadata")
    return Event(key, record.get("value"), metadata if isinstance(metadata, dict) else {}, time_s, ruleset)


def _json(text: str, begin: int) -> tuple[Any, int]:
    """Return the JSON value at ``begin`` and the position behind it, or (None, -1)."""
    try:
        return _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, -1


def _time(value: Any, per_second: float) -> float | None:
    number = to_number(value)
    return number / per_second if number is not None and number / per_second > _EPOCH_2015_S else None
