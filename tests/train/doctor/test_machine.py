"""The facts that a rank of the doctor collects about its machine and its data set."""

from __future__ import annotations

import json
import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs.load import load_both
from data.cache import _resident_pages, drop_pages, resident_bytes
from train.comm.device_group import DeviceGroup, Devices
from train.doctor import machine, probe
from train.doctor.machine import inspect_dataset, inspect_machine


def test_a_folder_that_is_not_there_has_the_free_bytes_of_its_nearest_parent(tmp_path: Path) -> None:
    runs = tmp_path / "not" / "there"
    _, cluster = load_both("digits", None, [f"cluster.paths.runs={runs}", "cluster.paths.stage=null"])
    facts = inspect_machine(cluster)
    assert facts["runs"]["folder"] == str(runs)
    assert facts["runs"]["free_bytes"] > 0
    assert facts["runs"]["is_writable"]
    assert facts["stage"] is None
    assert not runs.exists(), "the doctor changes nothing"
    json.dumps(facts)


def test_a_missing_data_set_is_a_problem_and_a_synthetic_one_has_no_folder(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    facts = inspect_dataset(recipe, cluster)
    assert (facts["exists"], facts["folder"]) == (False, str(tmp_path / "digits"))
    assert "digits" in facts["problem"]
    synthetic, _ = load_both("digits", None, ["data.source=synthetic"])
    assert inspect_dataset(synthetic, cluster) == {"folder": None}


def test_both_ends_of_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SAMPLE_BYTES", 4096)
    path, pages = tmp_path / "train.rec", 2000  # the kernel reads far fewer ahead
    path.write_bytes(b"x" * (pages * mmap.PAGESIZE))
    drop_pages([path])
    if resident_bytes([path]):
        pytest.skip("this folder keeps its pages: set TMPDIR to a folder on a disk")
    machine._read_ends(path)
    with path.open("rb") as file:
        cached = [
            _resident_pages(file.fileno(), page * mmap.PAGESIZE, mmap.PAGESIZE) for page in (0, pages // 2, pages - 1)
        ]
    assert cached == [1, 0, 1]
    path.write_bytes(b"short")
    machine._read_ends(path)


class _LateAfterEachRound(Devices):
    """The communicator of a rank that comes late to every round."""

    def gather(self, name: str, value: int) -> list[int]:
        values = super().gather(name, value)
        if name == "clock":
            time.sleep(0.05)
        return values


def test_a_rank_that_comes_late_has_no_other_clock_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ROUNDS", 5)
    group = DeviceGroup(2, is_gpu=False)
    with ThreadPoolExecutor(2) as pool:
        ranks = [kind(group, rank) for rank, kind in enumerate((Devices, _LateAfterEachRound))]
        on_time, late = pool.map(probe._clock_offsets, ranks)
    assert on_time == late
    assert on_time[0] == 0
    assert abs(on_time[1]) < 0.03
