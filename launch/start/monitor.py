"""Samples of the machine's load during a run: cores, memory, GPUs. The only importer of psutil."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from logs.usage import SAMPLES_FILE, Sample

__all__ = ["monitored"]

INTERVAL_S = 1.0
_GPU_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
_GPU_QUERY_TIMEOUT_S = 20
_NUMBER = re.compile(r"\d+(\.\d+)?")


@contextmanager
def monitored(folder: Path, *, has_gpu: bool) -> Iterator[None]:
    """Append a sample a second to ``utilisation.jsonl`` in the run folder while the block runs.

    The samples cover the processes that descend from this one. Under a launcher that also starts ranks on other
    machines, they cover this machine's ranks only.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_write_samples, args=(folder / SAMPLES_FILE, stop, has_gpu), name="monitor", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _write_samples(path: Path, stop: threading.Event, has_gpu: bool) -> None:
    processes = _Descendants()
    # A full disk ends the samples only; the ranks report the full disk.
    with suppress(OSError), path.open("w", encoding="utf-8", buffering=1) as file:
        while not stop.wait(INTERVAL_S):
            sample = processes.sample(has_gpu=has_gpu)
            file.write(json.dumps(asdict(sample)) + "\n")


class _Descendants:
    """The processes that descend from this one, with the processor time that each had used at the last sample."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._used_s: dict[int, float] = {}
        self._machine_s = self._machine()
        self._time_s = time.monotonic()

    def sample(self, *, has_gpu: bool) -> Sample:
        """Return the load since the last sample."""
        now_s, machine_s = time.monotonic(), self._machine()
        used_s, memory_bytes = 0.0, 0
        for process in self._root.children(recursive=True):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                total_s = times.user + times.system
                used_s += total_s - self._used_s.get(process.pid, 0.0)
                memory_bytes += process.memory_info().rss
                self._used_s[process.pid] = total_s
        span_s = now_s - self._time_s
        machine_busy = (machine_s - self._machine_s) / span_s
        self._time_s, self._machine_s = now_s, machine_s
        gpu_share, gpu_memory_bytes = _gpus() if has_gpu else (None, None)
        return Sample(
            time=time.time(),
            busy_cores=round(used_s / span_s, 3),
            machine_busy_cores=round(machine_busy, 3),
            memory_bytes=memory_bytes,
            gpu_share=gpu_share,
            gpu_memory_bytes=gpu_memory_bytes,
        )

    def _machine(self) -> float:
        """Return the processor time that all processes of the machine have used, in seconds."""
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - times.iowait)


def _gpus() -> tuple[float | None, int | None]:
    """Return the mean share of time (0 to 1) in which the GPUs were busy, and their used memory in bytes.

    A value is None if no GPU reports it: the parts of a GPU in MIG mode have no utilisation, ``[N/A]``.
    """
    if shutil.which(_GPU_QUERY[0]) is None:
        return None, None
    try:
        output = subprocess.run(
            _GPU_QUERY, capture_output=True, text=True, timeout=_GPU_QUERY_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    rows = [[word.strip() for word in line.split(",")] for line in output.splitlines() if line.count(",") == 1]
    busy, used = ([float(row[column]) for row in rows if _NUMBER.fullmatch(row[column])] for column in (0, 1))
    return (sum(busy) / len(busy) / 100 if busy else None), (int(sum(used) * (1 << 20)) if used else None)
