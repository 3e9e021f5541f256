"""Counts the energy of this machine's GPUs by NVML, and of its processors and their memory by RAPL.

RAPL's counters are those of Intel's and AMD's processors, which Linux shows in ``/sys/class/powercap``, since
CVE-2020-8694 to root only.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from logs.energy import Joules
from logs.gpu_load import gpu_meter

INTERVAL_S = 10.0
"""Time between two readings. Of the counters that begin anew at 0, the smallest does after 65 kJ: a minute at 1 kW."""

_PATIENCE_S = 10.0
"""How long a reading waits for NVML, which answers in milliseconds once its process has started."""


@dataclass(frozen=True)
class _Zone:
    """A counter of RAPL: ``kind`` is a field of `Joules`, and ``range_j`` where the counter begins anew."""

    kind: str
    folder: Path
    range_j: float | None


class EnergyMeter:
    """Counts what the devices of this machine use from `start` to `stop`.

    Nothing runs between the two if no device can be read.

    Args:
        gpus: Number of GPUs: the first ones that this process can see. If 0, no process is started to ask NVML.
        every_s: Seconds between two readings.

    Attributes:
        joules: What the devices have used, as of the last reading.
    """

    def __init__(self, gpus: int = 0, *, every_s: float = INTERVAL_S) -> None:
        self.joules = Joules()
        self._zones, self._num_gpus = list(_zones()), gpus
        self._every_s = every_s
        self._closing, self._stopped = ExitStack(), threading.Event()
        self._gpu_load = self._closing.enter_context(gpu_meter(gpus, _PATIENCE_S))
        self._thread: threading.Thread | None = None
        self._last: Sequence[float | None] = ()
        self._used: Sequence[float | None] = ()

    def start(self, on_reading: Callable[[], object] = lambda: None) -> None:
        """Begin to count; ``on_reading`` is called in a thread after each reading."""
        self._last = self._now()
        self._used = [None if each is None else 0.0 for each in self._last]
        self.joules = self._by_kind()
        if self.joules.is_known:
            self._thread = threading.Thread(target=self._read_often, args=(on_reading,), name="energy", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Count for the last time."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._read()
        self._closing.close()

    def _read_often(self, on_reading: Callable[[], object]) -> None:
        on_reading()
        while not self._stopped.wait(self._every_s):
            self._read()
            on_reading()

    def _read(self) -> None:
        now, ranges = self._now(), [*(zone.range_j for zone in self._zones), *[None] * self._num_gpus]
        self._used = [_added(*each) for each in zip(self._used, self._last, now, ranges, strict=True)]
        self._last, self.joules = now, self._by_kind()

    def _now(self) -> list[float | None]:
        """Return what each counter shows: those of the zones, then those of the GPUs."""
        gpus = [*self._gpu_load().joules, *[None] * self._num_gpus]
        return [*(_number_in(zone.folder / "energy_uj") for zone in self._zones), *gpus[: self._num_gpus]]

    def _by_kind(self) -> Joules:
        used = dict(zip(self._zones, self._used, strict=False))
        kinds = {kind: [each for zone, each in used.items() if zone.kind == kind] for kind in ("packages", "dram")}
        return Joules(gpus=self._used[len(self._zones) :], **kinds)


def _zones() -> Iterator[_Zone]:
    """Yield the counters that overlap with no other.

    A package counts its cores and its graphics, which are zones below it, but not its memory. The zone psys, where
    there is one, counts all of them again, and so do the zones of intel-rapl-mmio.
    """
    root = Path(os.environ.get("RANK_SYS", "/sys")) / "class" / "powercap"
    for folder in sorted(root.glob("intel-rapl:*"), key=lambda folder: (len(folder.name), folder.name)):
        try:
            name = (folder / "name").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        is_below = folder.name.count(":") > 1
        if (is_below and name == "dram") or (not is_below and name.startswith("package")):
            yield _Zone("dram" if is_below else "packages", folder, _number_in(folder / "max_energy_range_uj"))


def _number_in(file: Path) -> float | None:
    """Return the microjoules in a file as joules; None if it cannot be read."""
    try:
        return int(file.read_text(encoding="ascii")) / 1e6
    except (OSError, ValueError):
        return None


def _added(used: float | None, last: float | None, now: float | None, range_j: float | None) -> float | None:
    """Return the sum of ``used`` and what a counter has counted between two readings; None once that is unknown."""
    if used is None or last is None or now is None:
        return None
    if now >= last:
        return used + now - last
    return None if range_j is None else used + now - last + range_j
