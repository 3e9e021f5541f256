"""A made-up ``/sys/class/powercap`` with counters of energy that a test sets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RANGE_UJ = 65_532_610_987
"""Where a counter begins anew, of an Intel processor."""


class Rapl:
    """Zones as Linux shows them.

    Args:
        root: The folder in place of ``/sys``, to be named in the variable ``RANK_SYS``.
        zones: Folder of a zone -> its name.
    """

    def __init__(self, root: Path, **zones: str) -> None:
        self._folder = root / "class" / "powercap"
        for zone, name in {"intel-rapl": "", **zones}.items():
            (self._folder / zone).mkdir(parents=True)
            if name:
                (self._folder / zone / "name").write_text(f"{name}\n", encoding="ascii")
                (self._folder / zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n", encoding="ascii")

    def show(self, microjoules: dict[str, int]) -> None:
        """Set the counters of zones; one below 0 cannot be read."""
        for zone, value in microjoules.items():
            new = self._folder / zone / "new"
            new.write_text(f"{value}\n" if value >= 0 else "", encoding="ascii")
            new.replace(self._folder / zone / "energy_uj")


@contextmanager
def steady_power(root: Path, watts: float) -> Iterator[None]:
    """Let a made-up processor use so many watts while the block runs; for ``root`` see `Rapl`."""
    rapl, ended = Rapl(root, **{"intel-rapl:0": "package-0"}), threading.Event()

    def count() -> None:
        while not ended.wait(0.01):
            rapl.show({"intel-rapl:0": int(time.monotonic() * watts * 1e6) % RANGE_UJ})

    thread = threading.Thread(target=count)
    thread.start()
    yield
    ended.set()
    thread.join()
