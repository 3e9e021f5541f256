"""Traces for Chrome's viewer and ui.perfetto.dev, in their JSON object format. Imports nothing of ours."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """What happened from ``begin_us`` on, in the row of this name; bars of one row must not overlap."""

    name: str
    category: str
    row: str
    begin_us: float
    duration_us: float


def chrome_trace(processes: Mapping[int, Iterable[Bar]], title: str) -> dict[str, Any]:
    """Return a trace in which each process has rows of bars, in the order of each row's first bar.

    Args:
        processes: Number of the process -> its bars.
        title: What a process is called, before its number.
    """
    events: list[dict[str, Any]] = []
    for process, bars in processes.items():
        rows: dict[str, int] = {}
        events += [
            {"ph": "X", "name": bar.name, "cat": bar.category, "pid": process,
             "tid": rows.setdefault(bar.row, len(rows)), "ts": round(bar.begin_us, 3), "dur": round(bar.duration_us, 3)}
            for bar in bars
        ]  # fmt: skip
        names = [("process_name", 0, f"{title} {process}"), *(("thread_name", row, name) for name, row in rows.items())]
        events += [
            {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {"name": name}} for kind, row, name in names
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
