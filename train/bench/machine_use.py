"""What a machine did beside a bench: processor time of other work, and time that a hypervisor gave to other machines.

Linux's ``/proc/stat`` has the time for which each processor worked, for whomever; ``os.times`` has that of this process
and of all processes that it started and that have ended.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NOTICED = 0.05
"""Share of the processors from which on other work is worth a note; services of an idle machine take 0.01."""
_BUSY_FIELDS = (0, 1, 2)
"""Fields of ``/proc/stat``: user, nice, system. Interrupts belong to whoever sends packets, so they are left out."""
_STEAL_FIELD = 7


@dataclass(frozen=True)
class MachineUse:
    """Processor time during a bench, as a number of cores that worked all the time.

    Attributes:
        cores: The cores that this process may use.
        own_cores: Taken by the bench and the processes that it started.
        other_cores: Taken by other processes.
        stolen_cores: Wanted by this machine, and given to other machines by the hypervisor (steal).
        load_before: Mean number of processes that wanted a processor in the minute before the bench.
    """

    cores: int
    own_cores: float
    other_cores: float
    stolen_cores: float
    load_before: float

    @property
    def note(self) -> str | None:
        """Return a sentence if other work took a share that can change the figures, else None."""
        if self.other_cores + self.stolen_cores < _NOTICED * self.cores:
            return None
        return (
            f"this machine was busy: other work took {self.other_cores:.1f} of {self.cores} cores, the hypervisor "
            f"{self.stolen_cores:.1f}, the bench itself {self.own_cores:.1f}; load before it {self.load_before:.1f}"
        )


class _Times(NamedTuple):
    """Seconds of processor time since some moment in the past, over all usable cores, and the time of day."""

    busy_s: float
    steal_s: float
    own_s: float
    now_s: float


class MachineUseMeter:
    """Measures the use of this machine from its creation on; `read` may be called at any time."""

    def __init__(self) -> None:
        self._load_before = os.getloadavg()[0]
        self._begin = _read_times()

    def read(self) -> MachineUse:
        """Return the use until now."""
        begin, end = self._begin, _read_times()
        elapsed_s = max(end.now_s - begin.now_s, 1e-9)
        own = (end.own_s - begin.own_s) / elapsed_s
        return MachineUse(
            cores=len(os.sched_getaffinity(0)),
            own_cores=own,
            other_cores=max(0.0, (end.busy_s - begin.busy_s) / elapsed_s - own),
            stolen_cores=(end.steal_s - begin.steal_s) / elapsed_s,
            load_before=self._load_before,
        )


def _read_times() -> _Times:
    own = os.times()
    busy_s, steal_s = _processor_times(Path("/proc/stat").read_text(encoding="ascii"), os.sched_getaffinity(0))
    return _Times(busy_s, steal_s, sum(own[:4]), time.monotonic())


def _processor_times(stat: str, cores: set[int]) -> tuple[float, float]:
    """Return the seconds of work and of steal of these cores, from the text of ``/proc/stat``."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy = steal = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            busy += sum(int(fields[field]) for field in _BUSY_FIELDS)
            steal += int(fields[_STEAL_FIELD])
    return busy * tick_s, steal * tick_s
