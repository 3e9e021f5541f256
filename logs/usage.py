"""Reads the files on how much of a machine a run used: totals of each rank, and samples taken during the run."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import read_object

USAGE_FILE = "usage.json"
"""Totals of the training: wall_s, cpu_s, children_cpu_s and peak_memory_bytes, each a list with a number a rank."""

SAMPLES_FILE = "utilisation.jsonl"
"""A file with one `Sample` a line, as JSON."""

_TOTALS = {"wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes"}
_TOO_MUCH = 1e18
_REMEDY = "repeat the run, or remove the file"


@dataclass(frozen=True)
class Sample:
    """The load of the launching machine since the previous sample.

    Attributes:
        time: Unix seconds.
        busy_cores: CPU seconds a second that the run's processes used.
        machine_busy_cores: CPU seconds a second that all processes of the machine used.
        memory_bytes: Resident memory of the run's processes; a page that processes share is counted for each process.
        gpu_share: Mean utilisation of the GPUs that the run uses on the machine, 0 to 1; None without GPUs.
        gpu_memory_bytes: Memory in use on these GPUs; None without GPUs.
        gpu_shares: Utilisation of each of these GPUs; None for a GPU that does not report it.
        server_busy_cores: The part of ``busy_cores`` that parameter servers used; None in samples of earlier versions.
    """

    time: float
    busy_cores: float
    machine_busy_cores: float
    memory_bytes: int
    gpu_share: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_shares: Sequence[float | None] = ()
    server_busy_cores: float | None = None

    @property
    def rank_busy_cores(self) -> float:
        """CPU seconds a second that the run's processes used, without parameter servers."""
        return self.busy_cores - (self.server_busy_cores or 0.0)


def read_usage(folder: Path) -> dict[str, list[float]]:
    """Return the content of ``usage.json``; empty if the run folder has no such file.

    Raises:
        UserError: The file cannot be read, or holds other things than lists of numbers.
    """
    path = folder / USAGE_FILE
    if not os.path.lexists(path):
        return {}
    found = read_object(path)
    is_table = found.keys() >= _TOTALS
    if not is_table or not all(isinstance(each, list) and all(map(_is_possible, each)) for each in found.values()):
        raise UserError(f"{path}: cannot be read (a total is not one number per rank); {_REMEDY}")
    return found


def read_samples(folder: Path) -> list[Sample]:
    """Return the samples; a last line without a line end, cut off when the run was killed, is left out.

    Raises:
        UserError: The file cannot be read, or a line is no sample.
    """
    path = folder / SAMPLES_FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {_REMEDY}") from None
    return [_sample(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


def _sample(line: str, where: str) -> Sample:
    try:
        sample = Sample(**json.loads(line))
        others = (sample.gpu_share, sample.gpu_memory_bytes, sample.server_busy_cores, *sample.gpu_shares)
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{where} is not a sample; {_REMEDY}") from None
    values = (sample.time, sample.busy_cores, sample.machine_busy_cores, sample.memory_bytes)
    if not all(map(_is_possible, (*values, *(each for each in others if each is not None)))):
        raise UserError(f"{where} has a value that is not a number, or impossible; {_REMEDY}")
    return sample


def _is_possible(value: Any) -> bool:
    """Return whether a value is a number that is measured; a kernel's counters may go back by a moment."""
    return isinstance(value, int | float) and -1 <= value < _TOO_MUCH
