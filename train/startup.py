"""Start-up: a quick import of MXNet, and the ledger: which phase ran when, and what running side by side saved."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "import_mxnet", "process_age_s"]

_HIDDEN = ("sklearn", "scipy")
"""What MXNet imports when it is there, for a base class of its old model, its test tools and quantization."""


def import_mxnet() -> None:
    """Import MXNet without the packages that it takes along only where they are installed.

    With them (scikit-learn, which brings pandas, and SciPy) the import takes 2.1 to 2.3 s of processor time, without
    them 1.1 to 1.4 (five runs, this project's wheels). What it made is never garbage, so that no collection, neither
    now nor in a step, looks at it.
    """
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import of it fail
    gc.disable()
    try:
        import mxnet  # noqa: F401, PLC0415
    finally:
        gc.enable()
        gc.freeze()
        for name in hidden:
            del sys.modules[name]


def process_age_s() -> float:
    """Seconds since the kernel started this process, so that the interpreter's own start is counted."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


class Ledger:
    """Phases of one rank's start-up, in seconds since its process started. Safe to use from several threads."""

    def __init__(self) -> None:
        age_s = process_age_s()
        self._origin = time.monotonic() - age_s
        self._started_time = time.time() - age_s
        self._rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._add("interpreter", self._origin, time.monotonic())

    def _add(self, name: str, begin: float, end: float) -> None:
        row = {
            "phase": name,
            "thread": threading.current_thread().name,
            "begin_s": round(begin - self._origin, 6),
            "end_s": round(end - self._origin, 6),
        }
        with self._lock:
            self._rows.append(row)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter the time a block takes, also when it raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._add(name, begin, time.monotonic())

    def to_json(self) -> dict[str, Any]:
        """Give the ledger.

        ``started_time`` is when the process started, in Unix seconds, ``elapsed_s`` the wall time from then to the end
        of the last phase, ``work_s`` the sum of all phases, and ``overlap_saved_s`` the time in which more than one
        phase ran, counted once for each beyond the first: what the start would have taken longer had the same phases,
        each as long, run one after another.
        """
        with self._lock:
            rows = sorted(self._rows, key=lambda row: row["begin_s"])
        work = sum(row["end_s"] - row["begin_s"] for row in rows)
        covered, reach = 0.0, 0.0
        for row in rows:
            covered += max(0.0, row["end_s"] - max(row["begin_s"], reach))
            reach = max(reach, row["end_s"])
        return {
            "started_time": self._started_time,
            "phases": rows,
            "elapsed_s": reach,
            "work_s": round(work, 6),
            "overlap_saved_s": round(work - covered, 6),
        }
