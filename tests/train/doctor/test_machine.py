"""The facts that a rank of the doctor collects about its machine and its data set."""

import json
import mmap
import os
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from configs.load import dump, load_both
from data.cache import _resident_pages, drop_pages, resident_bytes
from tests.engines import ALONE
from train.comm.communicator import Communicator, SingleProcess
from train.comm.device_group import DeviceGroup, Devices
from train.doctor import machine, probe, step_probe
from train.doctor.machine import inspect_dataset, inspect_machine
from train.rank.startup import Ledger


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


def test_what_the_kernel_says_of_the_machine_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "mlx5_0"
    for port, state, rate in (("2", "1: DOWN", "40 Gb/sec (4X QDR)"), ("1", "4: ACTIVE", "100 Gb/sec (4X EDR)")):
        (adapter / "ports" / port).mkdir(parents=True)
        (adapter / "ports" / port / "state").write_text(f"{state}\n", encoding="ascii")
        (adapter / "ports" / port / "rate").write_text(f"{rate}\n", encoding="ascii")
    assert machine._ports(adapter) == {"1": "4: ACTIVE, 100 Gb/sec (4X EDR)", "2": "1: DOWN, 40 Gb/sec (4X QDR)"}
    _, cluster = load_both("digits", None, [f"cluster.paths.runs={tmp_path}", "cluster.paths.stage=$NO_SUCH_FOLDER"])
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    facts = inspect_machine(cluster)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available / 2 < facts["memory_available_bytes"] <= whole
    assert facts["shm_free_bytes"] == pytest.approx(shutil.disk_usage("/dev/shm").free, rel=0.2)
    assert "NO_SUCH_FOLDER" in facts["stage"]["problem"]
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert facts["locked_memory_bytes"] == (None if soft == resource.RLIM_INFINITY else soft)
    assert facts["interfaces"]["lo"] == Path("/sys/class/net/lo/operstate").read_text(encoding="ascii").strip()
    assert set(facts) >= {"environment", "adapters", "runs"}


@pytest.mark.parametrize(("limits", "told"), [((5, 9), 5), ((resource.RLIM_INFINITY, 9), None)])
def test_a_limit_is_the_one_that_applies(
    limits: tuple[int, int], told: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    assert machine._limit(resource.RLIMIT_MEMLOCK) == told


def test_the_rate_of_an_allreduce_is_that_of_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ALLREDUCE_BYTES", 4096)
    _, cluster = load_both("digits", None, ["cluster.engine.name=mxnet", "cluster.communication.kind=devices"])
    group = DeviceGroup(2, is_gpu=False)
    ranks = [replace(ALONE, rank=rank, world_size=2, local_rank=rank, local_size=2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        rates = list(pool.map(lambda rank: probe._allreduce(Devices(group, rank.rank), rank, cluster), ranks))
    for facts in rates:
        assert facts is not None
        assert (facts["bytes"], facts["is_right"]) == (4096, True)
        assert facts["bus_bytes_per_s"] * facts["median_s"] == pytest.approx(4096)
    assert probe._allreduce(Devices(group, 0), ALONE, cluster) is None


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


class _FiveSecondsAhead(Devices):
    """The communicator of a rank whose clock is five seconds fast."""

    def gather(self, name: str, value: int) -> list[int]:
        return super().gather(name, value + 5_000_000_000 if name == "clock" else value)


def test_a_clock_that_is_fast_is_so_by_its_seconds() -> None:
    group = DeviceGroup(2, is_gpu=False)
    with ThreadPoolExecutor(2) as pool:
        ranks = [kind(group, rank) for rank, kind in enumerate((Devices, _FiveSecondsAhead))]
        for offsets in pool.map(probe._clock_offsets, ranks):
            assert offsets == pytest.approx([0, 5], abs=0.1)


def test_the_memory_of_a_process_is_its_peak_in_bytes() -> None:
    _, cluster = load_both("digits", None)
    resident, peak = psutil.Process().memory_info().rss, step_probe._used_bytes(cluster, ALONE)
    assert peak is not None
    assert resident / 1.01 <= peak < 100 * resident


def test_memory_that_was_given_back_counts_in_the_peak() -> None:
    _, cluster = load_both("digits", None)
    with mmap.mmap(-1, 48 << 20) as block:  # an allocator may keep what an array gives back
        block.write(b"x" * len(block))
        held = psutil.Process().memory_info().rss
    peak = step_probe._used_bytes(cluster, ALONE)
    assert peak is not None
    few = 8 << 20  # the kernel counts some pages late
    assert peak > held - few > psutil.Process().memory_info().rss


def test_a_part_is_timed_three_times_and_its_failure_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([0.0, 1.0, 1.0, 1.25, 2.0, 4.0, 8.0])
    monkeypatch.setattr(step_probe, "time", SimpleNamespace(perf_counter=lambda: next(now_s)))
    told: list[str] = []
    parts = step_probe._Parts(SingleProcess(), lambda facts: told.append(facts["part"]))
    assert parts.run("forward", lambda: len(told), rounds=3) == 1
    assert parts.facts["seconds"] == {"forward": 1.0}, "the median of 1, 0.25 and 2 s"

    def fail() -> None:
        raise RuntimeError("Traceback\n  of many lines\nno memory\n")

    with pytest.raises(step_probe._PartFailed):
        parts.run("update", fail)
    assert told == ["forward", "update"]
    assert parts.facts["failure"] == {"part": "update", "words": "no memory"}


def test_a_rank_that_cannot_connect_tells_the_last_line_of_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_load_dali", lambda: None)  # takes a second
    sets = ["cluster.engine.name=mxnet", "cluster.communication.kind=none", "cluster.ranks_per_node=1"]
    recipe, cluster = load_both("digits", None, sets)
    job = probe._Job(tmp_path, cluster, recipe, has_data=False, has_step=False)

    def connect(*_: object) -> Communicator:
        raise RuntimeError("Traceback\n  of many lines\nConnection reset by peer\n")

    assert probe._examine(job, replace(ALONE, rank=3, local_rank=1), Ledger(), connect) == 1
    facts = json.loads((tmp_path / "rank_3.json").read_text(encoding="utf-8"))
    assert (facts["failure"], facts["is_second_hand"]) == ("Connection reset by peer", True)
    assert (facts["rank"], facts["local_rank"], facts["world_size"]) == (3, 1, 1)
    assert facts["cores"] == sorted(os.sched_getaffinity(0))
    assert "machine" not in facts, "the first rank of a host tells"
    assert facts["libraries"]["DALI"] == {"has": None}


def test_a_sound_data_set_is_told_in_records_and_bytes_and_a_broken_one_by_its_file(
    tmp_path: Path, shared_digits: Path
) -> None:
    shutil.copytree(shared_digits, tmp_path / "digits")
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    facts = inspect_dataset(recipe, cluster)
    assert (facts["folder"], facts["problem"]) == (str(tmp_path / "digits"), None)
    assert facts["records"] == recipe.data.train_samples + recipe.data.eval_samples
    assert facts["bytes"] >= sum(path.stat().st_size for path in (tmp_path / "digits").glob("*.rec"))
    assert facts["is_cache_told"] in (True, False)
    (tmp_path / "digits" / "more.rec").mkdir()
    facts = inspect_dataset(recipe, cluster)
    assert facts["problem"] == f"{tmp_path / 'digits' / 'more.rec'}: Is a directory"
    assert facts["exists"]


def test_a_folder_that_can_only_be_read_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert machine._folder_facts(tmp_path)["is_writable"] is False


@pytest.mark.parametrize(
    ("words", "more_s"), [([], 60), (["--data"], 60), (["--step"], 170), (["--data", "--step"], 170)]
)
def test_a_probe_does_what_it_is_asked_for_within_its_time(
    words: list[str], more_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, cluster = load_both("digits", None, ["cluster.communication.timeout_s=33"])
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    limits: list[float] = []
    monkeypatch.setattr(probe, "die_with_parent", lambda: None)
    monkeypatch.setattr(
        probe, "faulthandler", SimpleNamespace(dump_traceback_later=lambda limit_s, exit: limits.append(limit_s))
    )
    monkeypatch.setattr(probe, "run_ranks_here", lambda *given: given[-1].args[0])
    job: Any = probe.main([str(tmp_path), *words])
    assert limits == [33 + more_s]
    assert (job.has_data, job.has_step) == ("--data" in words, "--step" in words)
    assert (job.folder, job.recipe, job.cluster) == (tmp_path, recipe, cluster)


def test_dali_is_loaded_before_horovod() -> None:
    _, cluster = load_both("digits", None, ["cluster.engine.name=mxnet", "cluster.communication.kind=horovod"])
    names = [*probe._libraries(cluster, ALONE)]
    assert names[:2] == ["MXNet", "DALI"]
    assert any("Horovod" in name for name in names[2:])


def test_a_library_that_is_missing_is_told_in_one_line() -> None:
    def load() -> None:
        raise OSError("libmpi.so.40:\n  cannot open shared object file\n")

    assert probe._attempt(load) == {"problem": "libmpi.so.40: cannot open shared object file"}


def test_the_first_allreduce_does_not_count_and_a_wrong_sum_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 9.0, 10, 11, 20, 22, 30, 33, 40, 44, 50, 55])
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(probe, "_ALLREDUCE_BYTES", 4096)
    _, cluster = load_both("digits", None, ["cluster.engine.name=mxnet"])
    facts = probe._allreduce(SingleProcess(), replace(ALONE, world_size=2), cluster)  # which sums nothing
    assert facts is not None
    assert (facts["median_s"], facts["is_right"]) == (3.0, False)


@pytest.mark.parametrize("has_data", [True, False])
def test_the_first_rank_of_a_host_tells_of_the_machine_and_of_the_data_set_if_asked(
    has_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_libraries", lambda *_: {})
    recipe, cluster = load_both("digits", None, ["data.source=synthetic", "cluster.ranks_per_node=1"])
    job = probe._Job(tmp_path, cluster, recipe, has_data=has_data, has_step=False)
    assert probe._examine(job, ALONE, Ledger(), lambda *_: SingleProcess()) == 0
    facts = json.loads((tmp_path / "rank_0.json").read_text(encoding="utf-8"))
    assert facts["machine"]["runs"]["is_writable"]
    assert facts["data"] == ({"folder": None} if has_data else None)
    assert "failure" not in facts
