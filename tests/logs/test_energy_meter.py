"""The energy of processors and their memory, by a made-up tree of RAPL's counters."""

import threading
import time
from pathlib import Path

import pytest

from logs.energy_meter import EnergyMeter
from tests.logs.rapl import RANGE_UJ, Rapl

ZONES = {
    "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1-die-0",
    "intel-rapl:1:0": "dram", "intel-rapl:2": "psys", "intel-rapl:10": "package-2", "intel-rapl-mmio:0": "package-0",
}  # fmt: skip


@pytest.fixture
def rapl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rapl:
    monkeypatch.setenv("RANK_SYS", str(tmp_path))
    return Rapl(tmp_path, **ZONES)


def test_packages_and_memory_are_counted_once_and_no_zone_that_counts_them_again(rapl: Rapl) -> None:
    rapl.show(dict.fromkeys(ZONES, 1_000_000))
    meter = EnergyMeter()
    meter.start()
    rapl.show({zone: 1_000_000 + 10**number for number, zone in enumerate(ZONES)})
    meter.stop()
    # microjoules 10**0, 10**3 and 10**6; 10**2 and 10**4
    assert meter.joules.packages == pytest.approx([1e-6, 1e-3, 1])
    assert meter.joules.dram == pytest.approx([1e-4, 1e-2])


def test_a_counter_that_begins_anew_is_followed_as_often_as_it_does(rapl: Rapl) -> None:
    readings = threading.Semaphore(0)
    rapl.show({"intel-rapl:0": RANGE_UJ - 500_000, "intel-rapl:1": 3})
    meter = EnergyMeter(every_s=0.01)
    meter.start(readings.release)
    for value in (1_500_000, RANGE_UJ - 1, 7):
        rapl.show({"intel-rapl:0": value})
        for _ in range(2):  # one reading may have been under way
            assert readings.acquire(timeout=60)
        assert readings.acquire(timeout=60)
    meter.stop()
    assert meter.joules.packages[:2] == pytest.approx([(2 * RANGE_UJ + 7 - (RANGE_UJ - 500_000)) / 1e6, 0], abs=1e-4)


@pytest.mark.parametrize("gone", [False, True])
def test_a_counter_that_cannot_be_read_is_unknown_for_good(rapl: Rapl, gone: bool) -> None:
    rapl.show({"intel-rapl:0": 0, "intel-rapl:1": 1 if gone else -1, "intel-rapl:10": 1})
    meter = EnergyMeter()
    meter.start()
    rapl.show({"intel-rapl:0": 2_000_000, "intel-rapl:1": -1 if gone else 5, "intel-rapl:10": 1})
    meter.stop()
    assert (meter.joules.packages, meter.joules.dram) == ([2, None, 0], [None, None])


@pytest.mark.parametrize("zones", [{}, {"intel-rapl:0": "package-0"}], ids=["none", "unreadable"])
def test_where_nothing_can_be_read_nothing_is_known_and_nothing_runs(
    zones: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_SYS", str(tmp_path))
    Rapl(tmp_path, **zones)
    meter, threads = EnergyMeter(every_s=0.01), threading.active_count()
    meter.start()
    assert threading.active_count() == threads
    time.sleep(0.03)
    meter.stop()
    assert not meter.joules.is_known
    assert (list(meter.joules.packages), meter.joules.gpus) == ([None] * len(zones), [])
