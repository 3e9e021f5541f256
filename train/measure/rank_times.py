"""What is gathered of every rank after a run: times of a step, with the rank that computes longest, and resources."""

import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from logs.disk import dispensable, write_json
from logs.usage import USAGE_FILE
from train.comm.communicator import Communicator
from train.measure.timing import StepTimes

_UNIT_BYTES = 1024
"""Linux reports resident sizes in KiB."""


def gather_ranks(communicator: Communicator, samples: Sequence[StepTimes]) -> list[dict[str, Any]]:
    """Return the medians of every rank's step times; a collective, called after the run.

    Args:
        communicator: Gathers the values, in whole microseconds.
        samples: The samples of this rank; every rank has the same number.

    Returns:
        A row per rank, ``{"rank": 0, "compute_median_s": ...}`` and so on for each field of `StepTimes`; without
        samples, an empty list.
    """
    medians_s = {
        f"{each.name.removesuffix('_s')}_median_s": median(getattr(one, each.name) for one in samples)
        for each in fields(StepTimes)
        if samples
    }
    gathered = [communicator.gather(name, round(1e6 * own_s)) for name, own_s in medians_s.items()]
    rows = [[us / 1e6 for us in row] for row in zip(*gathered, strict=True)]
    return [{"rank": rank, **dict(zip(medians_s, row, strict=True))} for rank, row in enumerate(rows)]


def slowest_rank(ranks: Sequence[dict[str, Any]]) -> tuple[int | None, float | None]:
    """Return the rank with the longest median compute time, and by which share that exceeds the median rank's.

    Returns:
        (None, None) for a single rank or without samples.
    """
    times = [row["compute_median_s"] for row in ranks]
    if len(times) < 2 or not median(times):  # noqa: PLR2004
        return None, None
    return times.index(max(times)), max(times) / median(times) - 1


class Usage:
    """Count from the creation of this object on; of several ranks in one process, the first counts for all."""

    def __init__(self) -> None:
        self._counts = threading.current_thread() is threading.main_thread()
        self._begin = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Return the seconds of wall time, of CPU time of all threads, and of CPU time of ended child processes."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), time.process_time(), children.ru_utime + children.ru_stime

    def write(self, folder: Path, communicator: Communicator, *, is_writer: bool) -> None:
        """Gather every rank's usage; the rank with ``is_writer`` writes it into the run folder."""
        wall, own, children = (after - before for after, before in zip(self._now(), self._begin, strict=True))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES
        counted = int(self._counts)
        microseconds = {"wall_s": wall, "cpu_s": own * counted, "children_cpu_s": children * counted}
        rows = {key: communicator.gather(f"usage {key}", round(value * 1e6)) for key, value in microseconds.items()}
        memory = communicator.gather("usage peak_memory_bytes", peak * counted)
        if is_writer:
            table = {key: [value / 1e6 for value in values] for key, values in rows.items()}
            with dispensable():
                write_json(folder / USAGE_FILE, table | {"peak_memory_bytes": memory})
