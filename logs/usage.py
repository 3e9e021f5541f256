"""What a run measured of itself: the machine that it used, in totals of each rank and in samples, and ranks' times."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from configs.errors import UserError
from logs.disk import checked, read_as

USAGE_FILE = "usage.json"
"""Totals of the training: wall_s, cpu_s, children_cpu_s and peak_memory_bytes, each a list with a number a rank."""

SAMPLES_FILE = "utilisation.jsonl"
"""A file with one `Sample` a line, as JSON."""

_TOTALS = {"wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes"}

_Measured = Annotated[float, Field(ge=-1, lt=1e18)]
"""A number that can have been measured; a kernel's counters may go back by a moment."""

_Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Times beyond 30 years are damage."""


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

    time: _Measured
    busy_cores: _Measured
    machine_busy_cores: _Measured
    memory_bytes: _Measured
    gpu_share: _Measured | None = None
    gpu_memory_bytes: _Measured | None = None
    gpu_shares: Sequence[_Measured | None] = ()
    server_busy_cores: _Measured | None = None

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
    found = read_as(dict[str, list[_Measured]], path)
    if missing := ", ".join(sorted(_TOTALS - found.keys())):
        raise UserError(f"{path}: is damaged ({missing}: missing); repeat the run, or remove the file")
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
        raise UserError(f"{path}: cannot be read ({error}); repeat the run, or remove the file") from None
    return [checked(Sample, line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


@dataclass(frozen=True)
class Phase:
    """A part of a rank's start-up, in seconds since the process began."""

    phase: str
    thread: str
    begin_s: _Seconds
    end_s: _Seconds


@dataclass(frozen=True)
class Startup:
    """The content of ``startup.json``.

    Attributes:
        phases: The phases of rank 0.
        parameters: Number of the network's parameters; None in folders of older runs.
    """

    phases: Sequence[Phase] = ()
    parameters: int | None = None


@dataclass(frozen=True)
class RankTimes:
    """Medians of a rank's times in a step, an entry of the list ``ranks`` in ``ranks.json``."""

    rank: int
    compute_median_s: _Seconds
    comm_wait_median_s: _Seconds
    input_wait_median_s: _Seconds
