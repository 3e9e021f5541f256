"""Processors and memory that a control group leaves a process, in real groups (version 1) and in their files (2)."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.machine_limits import (
    available_memory_bytes,
    default_workers,
    free_bytes,
    memory_limit,
    oom_kills,
    usable_cores,
)
from tests.programs import control_group, python, run_program

TELL = """
import json, os, sys
from configs.machine_limits import *
for group in sys.argv[1:]:
    open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
held = bytearray(50 << 20)
limit = memory_limit()
print(json.dumps([usable_cores(), default_workers(), limit and limit[:2], available_memory_bytes()]))
"""


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Make a control group of version 1 with half a core, and one with 400 MB."""
    memory = "memory", "memory.limit_in_bytes", 400 << 20
    with control_group("cpu", "cpu.cfs_quota_us", 150_000) as cpu, control_group(*memory) as group:
        yield [cpu, group]


@pytest.mark.medium
def test_a_real_group_limits_cores_and_memory(groups: list[Path]) -> None:
    told = python("-c", TELL, *map(str, groups), check=True).stdout
    cores, workers, (limit, free), available = json.loads(told)
    assert (cores, workers) == (min(1.5, len(os.sched_getaffinity(0))), 1)
    assert limit == 400 << 20
    assert 200 << 20 < free < 350 << 20
    assert abs(free - available) < 8 << 20, "two readings, between which the kernel charges pages in batches"


@pytest.mark.medium
def test_the_processors_of_the_affinity_count(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    told = json.loads(run_program("taskset", "-c", "0", sys.executable, "-c", TELL, check=True).stdout)
    assert told[0] <= 1


def _machine(root: Path, group: str, files: dict[str, str], inside: str = "/") -> Path:
    """Write the files of a machine with control groups of version 2, which is mounted at ``inside`` of the tree."""
    contents = {
        "proc/self/mountinfo": f"30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        "proc/self/cgroup": f"0::{group}\n",
        "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable:     800000 kB\n",
    }
    for name, text in (contents | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_group_around_a_process_counts(tmp_path: Path) -> None:
    root = _machine(tmp_path, "/job/step", {
        "job/memory.max": f"{500 << 20}\n", "job/memory.current": f"{300 << 20}\n",
        "job/memory.stat": f"anon 7\ninactive_file {100 << 20}\nactive_file 9\n",
        "job/step/memory.max": f"{450 << 20}\n", "job/step/memory.current": "1\n",
        "job/cpu.max": "60000 100000\n", "job/step/cpu.max": "50000 100000\n", "cpu.max": "max 100000\n",
        "job/step/memory.events": "low 0\noom 2\noom_kill 2\n", "job/memory.events": "oom_kill 9\n",
    })  # fmt: skip
    limit = memory_limit(root)
    assert limit is not None
    assert (limit.limit_bytes, limit.free_bytes) == (500 << 20, 300 << 20)
    assert limit.group == root / "sys/fs/cgroup/job"
    assert available_memory_bytes(root) == 300 << 20
    assert (usable_cores(root), default_workers(root)) == (0.5, 1)
    assert oom_kills(root) == 9, "of this version, the outer group counts all"


def test_version_1_counts_a_kill_in_the_group_of_the_process_only(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "proc/self/cgroup": "9:memory:/job/step\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        "sys/fs/cgroup/memory/job/step/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = oom_kills(tmp_path)
    inner = tmp_path / "sys/fs/cgroup/memory/job/step/memory.oom_control"
    inner.write_text(inner.read_text().replace("oom_kill 1", "oom_kill 2"))
    assert oom_kills(tmp_path) == before + 1, "also where another job has been killed more often"


def test_a_container_that_sees_its_group_as_the_root_is_limited_too(tmp_path: Path) -> None:
    files = {"memory.max": f"{64 << 20}\n", "memory.current": "0\n", "cpu.max": "200000 100000\n"}
    for group, inside in (("/", "/"), ("/../../init", "/"), ("/docker/5eed", "/docker/5eed")):
        root = _machine(tmp_path / inside.replace("/", "_") / group.replace("/", "_"), group, files, inside)
        limit = memory_limit(root)
        assert limit is not None
        assert (limit.limit_bytes, limit.free_bytes) == (64 << 20, 64 << 20)
        assert usable_cores(root) == min(2, len(os.sched_getaffinity(0)))


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    root = _machine(tmp_path, "/user.slice", {"user.slice/memory.max": "max", "user.slice/cpu.max": "max 100000"})
    assert memory_limit(root) is None
    assert available_memory_bytes(root) == 800_000 << 10
    assert usable_cores(root) == len(os.sched_getaffinity(0))
    assert oom_kills(root) == 0
    assert available_memory_bytes(tmp_path / "nothing") is None
    assert free_bytes(Path("/proc")) is None, "as some file servers, it tells no size"
