"""``./run.sh simulate --calibrate-here`` measures this machine by two processes, and keeps its rates in a file."""

from pathlib import Path

import pytest

from train.sim.__main__ import main
from train.sim.hardware import load_description
from train.sim.measure_here import measure_process


@pytest.mark.ranks
def test_this_machine_is_measured_in_possible_rates_and_no_file_stays_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, files = tmp_path / "new" / "here.yaml", _open_files()
    assert main(["simulate", "--calibrate-here", "--out", str(path)]) == 0
    assert _open_files() == files
    assert capsys.readouterr().out.startswith(f"wrote {path}: ")
    found = load_description(path)
    ways = {f"{way}_bytes_per_s" for way in ("memory", "link")}
    assert found.keys() == {"core_share", "cores", "flops", *ways}
    assert 0 < found["core_share"] <= 1.01
    # A core makes at most 64 float32 operations in each of 6e9 cycles. Other work may leave little of it.
    assert 1e6 < found["flops"] < 4e11
    assert all(1e6 < found[way] < 1e12 for way in ways)


class _QuarterSeconds:
    """A clock that is a quarter of a second later at every reading."""

    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 0.25
        return self.now_s

    def process_time(self) -> float:
        return self.now_s / 2


@pytest.mark.medium
def test_rates_are_operations_and_bytes_over_the_time_between_two_readings_of_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("train.sim.measure_here.time", _QuarterSeconds())
    # A product and a copy take a quarter of a second. The process has 0.625 of the 1.5 s between the first reading and
    # the seventh.
    assert measure_process() == pytest.approx({
        "flops": 2 * 512**3 / 0.25, "memory_bytes_per_s": 2 * (32 << 20) / 0.25, "core_share": 0.625 / 1.5,
    })  # fmt: skip


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
