"""Real Slurm jobs on virtual nodes with one to spare: which nodes the ranks are on, and what is told of the others."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logs.__main__ import main as logs
from logs.folder import RunFolder
from tests.launch.scheduled import SLOW_STEPS, ask, asleep, has_begun, ranks, slurm, submit, wait_until
from tests.runs import read_summary

pytestmark = [pytest.mark.scheduler, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]

_NOTICED_S = 30
CLUSTER = """
name: two-nodes
num_nodes: 2
ranks_per_node: 1
launcher: srun
node: {cores: 1}
scheduler: {kind: slurm, wall_time_s: 600, spare_nodes: 1, max_restarts: 1}
communication: {bucket_bytes: 262144}
"""


@pytest.fixture(scope="module", autouse=True)
def three_nodes() -> Iterator[None]:
    """Nodes 1 and 3 are at one switch, node 2 is at the other."""
    with slurm(nodes=3):
        yield


def _node_of(rank: int) -> str:
    variables = Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    return next(each for each in variables if each.startswith(b"SLURMD_NODENAME=")).partition(b"=")[2].decode()


def _wait_for_end(job: str, log: Path) -> str:
    states = ("COMPLETED", "FAILED", "TIMEOUT")
    wait_until(lambda: any(f"JobState={state}" in ask("scontrol", "show", "job", job) for state in states), log, 0.3)
    return log.read_text(encoding="utf-8")


@pytest.fixture
def slow_node3() -> Iterator[None]:
    """Give the daemon of node3, and what it starts, 0.3 cores, and a fifth of what other processes get beside it."""
    group = Path(f"/sys/fs/cgroup/cpu/runs-{os.getpid()}")
    if not Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
        pytest.skip("control groups of version 1 with the controller cpu are not here")
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("30000", encoding="ascii")
    (group / "cpu.shares").write_text("205", encoding="ascii")
    daemon = (Path(os.environ["SLURM_CONF"]).parent / "slurmd.node3.pid").read_text(encoding="ascii")
    (group / "cgroup.procs").write_text(daemon, encoding="ascii")
    yield
    for process in (group / "cgroup.procs").read_text(encoding="ascii").split():
        (group.parent / "cgroup.procs").write_text(process, encoding="ascii")
    group.rmdir()


@pytest.mark.usefixtures("slow_node3")
def test_the_check_finds_a_slow_node_and_the_run_takes_a_spare_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cluster = CLUSTER.replace("spare_nodes", "check_first: true, spare_nodes") + f"paths: {{runs: {tmp_path}}}\n"
    job = submit(cluster, folder, overrides=["run.max_steps=10"])
    log = _wait_for_end(job, folder / "job.log")
    assert re.search(r"^WARN +slow node \(node3\): \d+", log, re.MULTILINE), log
    assert re.findall(r"/run on (.*), without (\S+);", log) == [("node1 node2", "node3")]
    assert re.findall(r"^rank . of 2 on (\S+) \(by Slurm\)", log, re.MULTILINE)[-2:].count("node3") == 0
    summary = read_summary(folder)
    assert (summary["status"], summary["world_size"], list(summary["left_out"])) == ("success", 2, ["node3"])
    assert logs(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"Attempt 1 began without node3: node3 is \d+ % slower than the median \(", page)
    history = [json.loads(line) for line in (tmp_path / "health.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [[node["host"] for node in row["slow"]] for row in history] == [["node3"]]


def test_a_spare_node_takes_the_place_of_one_whose_rank_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = submit(asleep(CLUSTER), folder, "--rehearse", overrides=[*SLOW_STEPS, "run.epochs=5"])
    wait_until(lambda: has_begun(folder) and bool(RunFolder(folder).checkpoints.files()), folder / "job.log")
    (killed,) = [rank for rank in ranks(folder) if _node_of(rank) == "node3"]
    os.kill(killed, signal.SIGKILL)
    begin = time.monotonic()
    while not RunFolder(folder).attempts.read():
        assert time.monotonic() < begin + _NOTICED_S
        time.sleep(0.1)
    log = _wait_for_end(job, folder / "job.log")
    assert re.findall(r"/run on (.*), without (.*)$", log, re.MULTILINE) == [
        ("node1 node3", "node2"),
        ("node1 node2", "node3"),
    ]
    for rank, nodes in enumerate((("node1", "node1"), ("node3", "node2"))):
        assert tuple(re.findall(rf"^rank {rank} of 2 on (\S+) \(by Slurm\)", log, re.MULTILINE)) == nodes
    assert "restart 1 of at most 1, without node3, which failed\n" in log
    summary = read_summary(folder)
    assert (summary["status"], list(summary["left_out"])) == ("success", ["node3"])
    assert logs(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "was restarted automatically without node3" in (tmp_path / "page.html").read_text(encoding="utf-8")
