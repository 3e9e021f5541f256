"""A run's use of its machine, as files: seconds and memory of each rank, and samples while it ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SAMPLES_FILE", "USAGE_FILE", "Sample", "read_samples", "read_usage"]

USAGE_FILE = "usage.json"
"""Of the training, by rank: wall_s, cpu_s, children_cpu_s, peak_memory_bytes, each a list."""

SAMPLES_FILE = "utilisation.jsonl"
"""A `Sample` a line."""


@dataclass(frozen=True)
class Sample:
    """What a run's processes on the launching machine did since the sample before.

    Attributes:
        time: Unix seconds.
        busy_cores: CPU seconds a second, of the run's own processes.
        machine_busy_cores: The same of everything on the machine: what is above is other people's.
        memory_bytes: Resident, pages that processes share counted for each.
        gpu_share: Mean utilisation of the machine's GPUs, 0 to 1; none without any.
        gpu_memory_bytes: In use on all of them.
    """

    time: float
    busy_cores: float
    machine_busy_cores: float
    memory_bytes: int
    gpu_share: float | None = None
    gpu_memory_bytes: int | None = None


def read_usage(folder: Path) -> dict[str, list[float]]:
    """Read ``usage.json``; empty where a run has none."""
    path = folder / USAGE_FILE
    found: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def read_samples(folder: Path) -> list[Sample]:
    """Read the samples; a last line that a kill cut off is left out."""
    path = folder / SAMPLES_FILE
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [Sample(**row) for row in rows]
