"""What a machine did beside a bench: processor time of other work, and time that a hypervisor gave to other machines.

Linux's ``/proc/stat`` has the time for which each processor worked, for whomever; ``os.times`` has that of this process
and of all processes that it started and that have ended.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

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


class MachineUseMeter:
    """Measures the use of this machine from its creation on; `read` may be called at any time."""

    def __init__(self) -> None:
        self._load_before = os.getloadavg()[0]
        self._begin = _read_times()

    def read(self) -> MachineUse:
        """Return the use until now."""
        busy_s, steal_s, own_s, elapsed_s = (end - begin for begin, end in zip(self._begin, _read_times(), strict=True))
        elapsed_s = max(elapsed_s, 1e-9)
        return MachineUse(
            cores=len(os.sched_getaffinity(0)),
            own_cores=own_s / elapsed_s,
            other_cores=max(0.0, (busy_s - own_s) / elapsed_s),
            stolen_cores=steal_s / elapsed_s,
            load_before=self._load_before,
        )


def _read_times() -> tuple[float, float, float, float]:
    """Return seconds of work and of steal of the usable cores, of work of this process, and of the time of day."""
    tick_s, cores = 1 / os.sysconf("SC_CLK_TCK"), os.sched_getaffinity(0)
    busy = steal = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            busy += sum(int(fields[field]) for field in _BUSY_FIELDS)
            steal += int(fields[_STEAL_FIELD])
    return busy * tick_s, steal * tick_s, sum(os.times()[:4]), time.monotonic()
