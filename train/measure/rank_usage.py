"""The resources that a rank used while it trained: wall time, CPU time and memory."""

import resource
import threading
import time
from pathlib import Path

from logs.disk import dispensable, write_json
from logs.usage import USAGE_FILE
from train.comm.communicator import Communicator

_UNIT_BYTES = 1024
"""Linux reports resident sizes in KiB."""


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
