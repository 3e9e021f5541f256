"""Samples what a run does to this machine while it runs: cores, memory, GPUs. The only importer of psutil."""

from __future__ import annotations

import json
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

EVERY_S = 1.0
_GPU_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


@contextmanager
def monitored(folder: Path, *, has_gpu: bool) -> Iterator[None]:
    """Append a sample a second to the run's ``utilisation.jsonl`` while the block runs.

    What counts is what descends from this process; under a launcher that starts ranks on other machines, that is
    this machine's share.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder / SAMPLES_FILE, stop, has_gpu), name="monitor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(path: Path, stop: threading.Event, has_gpu: bool) -> None:
    tree = _Tree()
    # A full disk ends the samples; that it is full, the ranks say.
    with suppress(OSError), path.open("w", encoding="utf-8", buffering=1) as file:
        while not stop.wait(EVERY_S):
            sample = tree.sample(has_gpu=has_gpu)
            file.write(json.dumps(asdict(sample)) + "\n")


class _Tree:
    """The processes below this one, with what they had used when last seen."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._seen: dict[int, float] = {}
        self._machine_s = self._machine()
        self._time = time.monotonic()

    def sample(self, *, has_gpu: bool) -> Sample:
        """Measure since the last time."""
        now, machine_s = time.monotonic(), self._machine()
        used, memory = 0.0, 0
        for process in self._root.children(recursive=True):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                total = times.user + times.system
                used += total - self._seen.get(process.pid, 0.0)
                memory += process.memory_info().rss
                self._seen[process.pid] = total
        span = now - self._time
        everybody = (machine_s - self._machine_s) / span
        self._time, self._machine_s = now, machine_s
        gpu = _gpus() if has_gpu else (None, None)
        return Sample(time.time(), round(used / span, 3), round(everybody, 3), memory, *gpu)

    def _machine(self) -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - times.iowait)


def _gpus() -> tuple[float | None, int | None]:
    """Give the mean share of time that the GPUs were busy, and the memory in use, as nvidia-smi says."""
    if shutil.which(_GPU_QUERY[0]) is None:
        return None, None
    told = subprocess.run(_GPU_QUERY, capture_output=True, text=True, check=False).stdout
    rows = [[float(word) for word in line.split(",")] for line in told.splitlines() if line.strip()]
    if not rows:
        return None, None
    return sum(row[0] for row in rows) / len(rows) / 100, int(sum(row[1] for row in rows) * (1 << 20))
