"""``./run.sh simulate --calibrate-here`` measures this machine by two processes, and keeps its rates in a file."""

from pathlib import Path

import pytest

from train.sim.__main__ import main
from train.sim.cpu import load_description


@pytest.mark.ranks
def test_this_machine_is_measured_in_possible_rates_and_no_file_stays_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, files = tmp_path / "new" / "here.yaml", _open_files()
    assert main(["simulate", "--calibrate-here", "--out", str(path)]) == 0
    assert _open_files() == files
    assert capsys.readouterr().out.startswith(f"wrote {path}: ")
    found = load_description(path)
    ways = {f"{way}_bytes_per_s" for way in ("memory", "link", "sum")}
    assert found.keys() == {"core_share", "cores", "flops", "sum_bucket_s", *ways}
    assert 0 < found["core_share"] <= 1.01
    # A core makes at most 64 float32 operations in each of 6e9 cycles. Other work may leave little of it.
    assert 1e6 < found["flops"] < 4e11
    assert all(1e6 < found[way] < 1e12 for way in ways)
    assert 1e-7 < found["sum_bucket_s"] < 10


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Measuring takes seconds.
    monkeypatch.setattr("train.sim.answers.measure_machine", lambda: {"flops": 1.0})
    (tmp_path / "file").touch()
    assert main(["simulate", "--calibrate-here", "--out", str(tmp_path / "file" / "here.yaml")]) == 2
    assert capsys.readouterr().err.endswith("choose another --out\n")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
