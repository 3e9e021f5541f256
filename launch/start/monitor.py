"""Samples of the machine's load during a run: cores, memory, GPUs. The only importer of psutil."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from configs.programs import Program
from logs.gpu_load import GpuLoad, gpu_meter
from logs.usage import SAMPLES_FILE, Sample

INTERVAL_S = 1.0


@contextmanager
def monitored(folder: Path, *, gpus: int) -> Iterator[None]:
    """Append a sample a second to ``utilisation.jsonl`` in the run folder while the block runs.

    The samples cover the processes that descend from this one. Under a launcher that also starts ranks on other
    machines, they cover this machine's ranks only.

    Args:
        folder: The run folder.
        gpus: Number of GPUs that the run uses on this machine: the first ones that the ranks can see.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_write_samples, args=(folder / SAMPLES_FILE, stop, gpus), name="monitor", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _write_samples(path: Path, stop: threading.Event, gpus: int) -> None:
    processes = _Descendants()
    # A full disk ends the samples only; the ranks report the full disk.
    with suppress(OSError), path.open("w", encoding="utf-8", buffering=1) as file, gpu_meter(gpus) as gpu_load:
        while not stop.wait(INTERVAL_S):
            sample = processes.sample(gpu_load())
            file.write(json.dumps(asdict(sample)) + "\n")


class _Descendants:
    """The processes that descend from this one. Of each, psutil keeps the time and the use at its last reading."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._known: dict[psutil.Process, psutil.Process] = {}
        self._machine_s, self._time_s = self._machine(), time.monotonic()

    def sample(self, gpus: GpuLoad) -> Sample:
        """Return the load since the last sample, with that of the GPUs; a new process counts from the next one on."""
        begin_s, machine_s = time.monotonic(), self._machine()
        busy, serving, memory_bytes = 0.0, 0.0, 0
        self._known = {each: self._known.get(each, each) for each in self._root.children(recursive=True)}
        for process in self._known.values():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                own = process.cpu_percent() / 100
                busy += own
                serving += own if Program.PARAMETER_SERVER.value in process.cmdline() else 0.0
                memory_bytes += process.memory_info().rss
        machine_busy = (machine_s - self._machine_s) / (begin_s - self._time_s)
        self._time_s, self._machine_s = begin_s, machine_s
        known = [share for share in gpus.shares if share is not None]
        return Sample(
            time=time.time(),
            busy_cores=round(busy, 3),
            machine_busy_cores=round(machine_busy, 3),
            memory_bytes=memory_bytes,
            gpu_share=sum(known) / len(known) if known else None,
            gpu_memory_bytes=gpus.memory_bytes,
            gpu_shares=gpus.shares,
            server_busy_cores=round(serving, 3),
        )

    def _machine(self) -> float:
        """Return the processor time that all processes of the machine have used, in seconds."""
        times = psutil.cpu_times()
        # Linux counts the time of virtual machines a second time, in user and nice.
        return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
