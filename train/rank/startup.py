"""The start-up ledger: which phase of a rank's start-up ran when, and which phases ran side by side."""

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAITING = "wait for communicator"
"""The phase in which a rank that has done its own part waits for all others."""


def process_age_s() -> float:
    """Return the seconds since the kernel started this process, so that the interpreter's own start is counted."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


class Ledger:
    """Phases of one rank's start-up, in seconds since the process started. Safe to use from several threads."""

    def __init__(self) -> None:
        age_s = process_age_s()
        self._origin = time.monotonic() - age_s
        self._started_time = time.time() - age_s
        self._rows: list[dict[str, Any]] = []
        self._add("interpreter", self._origin, time.monotonic())

    def _add(self, name: str, begin: float, end: float) -> None:
        row = {
            "phase": name,
            "thread": threading.current_thread().name,
            "begin_s": round(begin - self._origin, 6),
            "end_s": round(end - self._origin, 6),
        }
        self._rows.append(row)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the time that the block takes, also if the block raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._add(name, begin, time.monotonic())

    def to_json(self) -> dict[str, Any]:
        """Return the ledger.

        Returns:
            ``started_time``: when the process started, in Unix seconds. ``phases``: a row a phase. ``elapsed_s``: wall
            time from the start of the process to the end of the last phase.
        """
        rows = sorted(self._rows, key=lambda row: row["begin_s"])
        elapsed_s = max(row["end_s"] for row in rows)
        return {"started_time": self._started_time, "phases": rows, "elapsed_s": elapsed_s}


def gather_starts(gather: Callable[[str, bytes], list[bytes]], host: str, ledger: Ledger) -> dict[str, Any]:
    """Gather how each rank started; every rank calls it.

    Args:
        gather: `train.comm.communicator.Communicator.gather_bytes`.
        host: The host of this rank.
        ledger: The ledger of this rank, with the phase `WAITING`.

    Returns:
        ``hosts``: the host of each rank. ``began``: when the first rank's process started, in Unix seconds. ``last``:
        the rank that was ready last, its ``host``, ``ready_s`` since then, ``median_s`` of all ranks, and the ``phase``
        in which it lost most time to the median rank, with its ``phase_s`` and ``phase_median_s``.
    """
    own = ledger.to_json()
    phases = {row["phase"]: row["end_s"] - row["begin_s"] for row in own["phases"]}
    ready_s = next((row["begin_s"] for row in own["phases"] if row["phase"] == WAITING), own["elapsed_s"])
    content = {"host": host, "began": own["started_time"], "ready": own["started_time"] + ready_s, "phases": phases}
    rows = [json.loads(each) for each in gather("starts", json.dumps(content).encode())]
    first, last = min(row["began"] for row in rows), max(range(len(rows)), key=lambda rank: rows[rank]["ready"])
    late = rows[last]
    medians = {name: statistics.median(row["phases"].get(name, 0.0) for row in rows) for name in late["phases"]}
    worst = max((name for name in medians if name != WAITING), key=lambda name: late["phases"][name] - medians[name])
    return {
        "hosts": [row["host"] for row in rows],
        "began": first,
        "last": {
            "rank": last,
            "host": late["host"],
            "ready_s": round(late["ready"] - first, 6),
            "median_s": round(statistics.median(row["ready"] for row in rows) - first, 6),
            "phase": worst,
            "phase_s": round(late["phases"][worst], 6),
            "phase_median_s": round(medians[worst], 6),
        },
    }
