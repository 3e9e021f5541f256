"""Real Slurm jobs on two of three virtual nodes with a rank each, by Gloo's rendezvous without ssh, or by MPI."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import ROOT
from configs.registry import has_engine, horovod_has_mpi
from launch.submit.__main__ import main
from launch.submit.jobspec import IMAGE_PROGRAM
from logs.__main__ import main as logs
from logs.checkpoints import step_of
from logs.folder import RunFolder
from tests.launch.mpi import require_mpi
from tests.launch.scheduled import SLOW_STEPS, ask, asleep, asleep_alone, has_begun, ranks, slurm, submit, wait_until
from tests.limits import processes_with
from tests.programs import Said
from tests.runs import read_summary

pytestmark = [pytest.mark.scheduler, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]

_NOTICED_S = 30
_ASK_EVERY_S = 1
"""A client of Slurm takes longer than to look for a file."""

CLUSTER = """
name: two-nodes
num_nodes: 2
ranks_per_node: 1
launcher: srun
node: {cores: 1}
scheduler: {kind: slurm, wall_time_s: 600, requeue: true}
communication: {bucket_bytes: 262144}
"""


@pytest.fixture(scope="module", autouse=True)
def three_nodes() -> Iterator[None]:
    """Nodes 1 and 3 are at one switch, node 2 is at the other."""
    with slurm(nodes=3):
        yield


def _state(job: str) -> tuple[str, str, int]:
    """Return a job's state, exit status and number of restarts."""
    text = ask("scontrol", "show", "job", job)
    found = {key: re.search(rf"{key}=(\S+)", text) for key in ("JobState", "ExitCode", "Restarts")}
    state, status, restarts = (match[1] if match else "" for match in found.values())
    return state, status, int(restarts or 0)


def _log_at_the_end(job: str, folder: Path) -> str:
    wait_until(lambda: _state(job)[0] not in ("PENDING", "RUNNING", "COMPLETING"), folder / "job.log", _ASK_EVERY_S)
    return (folder / "job.log").read_text(encoding="utf-8")


@pytest.fixture
def mpi_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual nodes are one host. Open MPI takes them for two, and its shared memory crashes between them."""
    monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")


def _has_steps() -> bool:
    """Return whether any job of this Slurm still runs, or is ending."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in processes_with({"SLURM_CONF": os.environ["SLURM_CONF"]})]
    return any(path.read_bytes().startswith(b"slurmstepd: ") for path in commands if path.exists())


def _has_continued(job: str) -> bool:
    """Return whether a job that was queued again has succeeded."""
    state, status, _ = _state(job)
    # On the way back into the queue, the job is COMPLETED for a moment, with exit status 75.
    return (state, status) == ("COMPLETED", "0:0")


def test_a_job_near_its_limit_is_queued_again_and_continues_where_it_was(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is submitted from inside another job, whose variables it does not get."""
    foreign = {"SLURM_MEM_PER_CPU": "50", "SBATCH_EXPORT": "NONE", "SLURM_NTASKS": "9", "PMI_RANK": "3"}
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    cluster = asleep(CLUSTER).replace("requeue: true", "requeue: true, resources: [--mem=1, --export=NONE]")
    job = submit(cluster, folder, "--rehearse", overrides=[*SLOW_STEPS, "run.epochs=5"])
    wait_until(lambda: has_begun(folder), folder / "job.log")
    ask("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: _state(job)[0] == "PENDING", folder / "job.log", _ASK_EVERY_S)
    assert _state(job)[2] == 1
    assert re.search(rf"owner of the folder: none\n(?s:.*) {job} +main", said(main, "submit", "--status", folder).out)
    assert '"status": "aborted"' in (folder / "result_0.txt").read_text(encoding="utf-8")
    # Slurm would end the next attempt together with the rest of this one, so this one has to be gone first.
    wait_until(lambda: not _has_steps(), folder / "job.log")
    wait_until(lambda: _has_continued(job), folder / "job.log", _ASK_EVERY_S)
    found = read_summary(folder)
    assert (found["status"], found["steps"], found["world_size"]) == ("success", 60, 2)
    assert found["is_rehearsal"], "a rehearsed job goes the way of the real one and is no result"
    log = (folder / "job.log").read_text(encoding="utf-8")
    assert log.count(f"job {job} of {folder} on node1 node3") == 2
    assert re.search(r"^rank 1 of 2 on node3 \(by Slurm\): local rank 0, cores 0, memory near", log, re.MULTILINE)
    assert read_summary(folder)["resumed_from_step"] > 0


@pytest.mark.usefixtures("mpi_of_one_host")
def test_ranks_meet_over_mpi_if_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = "mpi" if horovod_has_mpi() and shutil.which("mpirun") else "gloo"
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    folder = tmp_path / "run"
    job = submit(CLUSTER.replace("262144", f"262144, backend: {backend}"), folder, overrides=["run.max_steps=2"])
    log = _log_at_the_end(job, folder)
    assert _state(job)[:2] == ("COMPLETED", "0:0"), log
    assert (read_summary(folder)["status"], read_summary(folder)["world_size"]) == ("success", 2)
    assert re.search(r"^rank 1 of 2 on node3 ", log, re.MULTILINE)
    assert not has_engine("mxnet") or f"HOROVOD_CONTROLLER={backend}" in log


def test_ranks_train_on_images_in_a_container_of_charliecloud(
    tmp_path: Path, packed_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ch-run") is None:
        pytest.skip("Charliecloud is not installed here (ch-run)")
    # The image has the program's folder, and instead of copies, the host's programs are mounted into it.
    image = tmp_path / "image"
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    for name in ("group", "hosts", "passwd", "resolv.conf"):
        (image / "etc" / name).touch()
    # The environment knows where the program was set up, so the program is in both places.
    own = dict.fromkeys(["/usr", sys.base_prefix, str(ROOT)])
    for path in (IMAGE_PROGRAM, *own):  # else both nodes make them at once, and one of them fails
        image.joinpath(str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
    mounts = [f"{ROOT}:{IMAGE_PROGRAM}", *(f"{path}:{path}" for path in own)]
    container = f"container: {{runtime: charliecloud, image: '{image}', mounts: {mounts}}}"
    place, folder = tmp_path / "cluster.yaml", tmp_path / "run"
    place.write_text(f"{CLUSTER}{container}\npaths: {{data: '{packed_digits}'}}\n", encoding="utf-8")
    monkeypatch.setenv("USER", "root")
    short = [word for each in ("run.max_steps=2", "run.target_top1=null") for word in ("--set", each)]
    assert main(["submit", "digits", "--cluster", str(place), "--run-dir", str(folder), *short]) == 0
    wait_until(lambda: (folder / "summary.json").exists() and not _has_steps(), folder / "job.log", _ASK_EVERY_S)
    log = (folder / "job.log").read_text(encoding="utf-8")
    found = read_summary(folder)
    assert (found["status"], found["world_size"]) == ("success", 2), log
    assert re.search(r"^rank 1 of 2 on node3 ", log, re.MULTILINE)


def test_a_job_that_sbatch_refuses_is_one_line_and_leaves_no_folder(tmp_path: Path, said: Said) -> None:
    place = tmp_path / "cluster.yaml"
    place.write_text(CLUSTER.replace("kind: slurm", "kind: slurm, queue: nowhere"), encoding="utf-8")
    told = said(main, "submit", "digits", "--cluster", place, "--run-dir", tmp_path / "run", status=2).err
    assert "error: sbatch refuses the job: sbatch: error: invalid partition" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("mpi_of_one_host")
@pytest.mark.parametrize(("launcher", "restarts"), [("srun", 3), ("mpirun", 0)])
def test_a_job_in_which_one_rank_refuses_has_failed_and_names_the_rank(
    launcher: str, restarts: int, tmp_path: Path, packed_digits: Path
) -> None:
    cluster = CLUSTER.replace("launcher: srun", f"launcher: {launcher}")
    cluster = cluster.replace("requeue: true", f"requeue: true, max_restarts: {restarts}")
    if launcher == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed here")
        if has_engine("mxnet"):
            require_mpi()
            cluster = cluster.replace("262144", "262144, backend: mpi")
    folder = tmp_path / "run"
    (tmp_path / "stage-node3").touch()
    stage = f"cluster.paths.stage={tmp_path}/stage-$SLURMD_NODENAME"
    digits = ["data.source=digits", "data.eval_samples=599", f"cluster.paths.data={packed_digits}", stage]
    job = submit(cluster, folder, overrides=digits)
    log = _log_at_the_end(job, folder)
    assert _state(job) == ("FAILED", "2:0", 0), log
    summary = read_summary(folder)
    assert (summary["status"], summary["failed_rank"]) == ("aborted", 1)
    assert summary["failure"].startswith(f"rank 1 on node3 refused to start: {tmp_path}/stage-node3: ")
    assert f"error: {folder}: {summary['failure']}" in log
    assert "continues" not in log


def _has_kept_more(folder: Path) -> bool:
    """Return whether the attempt that goes on has kept a step."""
    resumed, kept = RunFolder(folder).checkpoints.resume_point(), RunFolder(folder).checkpoints.files()
    return bool(kept) and (resumed is None or step_of(kept[0]) > step_of(resumed))


def test_a_job_leaves_a_node_out_whose_ranks_were_killed_twice_and_ends_well_without_a_hand(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cluster = asleep_alone(CLUSTER).replace("requeue: true", "requeue: true, max_restarts: 5")
    job = submit(cluster, folder, "--rehearse", overrides=[*SLOW_STEPS, "run.epochs=4"])
    for number in (1, 2):
        wait_until(lambda: bool(ranks(folder)) and _has_kept_more(folder), folder / "job.log")
        os.kill(ranks(folder)[0], signal.SIGKILL)
        begin = time.monotonic()
        while len(RunFolder(folder).attempts.read()) < number:
            assert time.monotonic() < begin + _NOTICED_S
            time.sleep(0.1)
    wait_until(lambda: _has_continued(job), folder / "job.log", _ASK_EVERY_S)
    log = (folder / "job.log").read_text(encoding="utf-8")
    assert "restart 2 of at most 5, without node2, which failed twice" in log
    assert re.findall(rf"^job {job} of {folder} on (.*)$", log, re.MULTILINE) == ["node2", "node1"]
    assert [list(each.leaves_out) for each in RunFolder(folder).attempts.read()] == [[], ["node2"]]
    assert read_summary(folder)["status"] == "success"


SPARED = CLUSTER.replace("requeue: true", "spare_nodes: 1, max_restarts: 1")


def _node_of(rank: int) -> str:
    variables = Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    return next(each for each in variables if each.startswith(b"SLURMD_NODENAME=")).partition(b"=")[2].decode()


@pytest.fixture
def slow_node3() -> Iterator[None]:
    """Give the daemon of node3, and what it starts, 0.3 cores, and a fifth of what other processes get beside it."""
    group = Path(f"/sys/fs/cgroup/cpu/runs-{os.getpid()}")
    if not Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
        pytest.skip("control groups of version 1 with the controller cpu are not here")
    group.mkdir()
    # In periods shorter than a step: else one step lies within the quota, another waits for the next period, and so
    # wide a spread is no proof of a slow node.
    (group / "cpu.cfs_period_us").write_text("5000", encoding="ascii")
    (group / "cpu.cfs_quota_us").write_text("1500", encoding="ascii")
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
    cluster = SPARED.replace("spare_nodes", "check_first: true, spare_nodes") + f"paths: {{runs: {tmp_path}}}\n"
    job = submit(cluster, folder, overrides=["run.max_steps=10"])
    log = _log_at_the_end(job, folder)
    for found in ("ranks: 3 on 3 hosts$", r"clocks: at most 0\.", r"step: .* images/s on 3 ranks; compute "):
        assert re.search(f"^OK +{found}", log, re.MULTILINE), log
    # On loaded cores its loss may be chance, and a run takes the spare in its place all the same.
    assert re.search(r"^WARN +slow node \(node3\): \d+|; the slowest is node3, \d+", log, re.MULTILINE), log
    assert re.findall(r"/run on (.*), without (\S+);", log) == [("node1 node2", "node3")]
    assert re.findall(r"^rank . of 2 on (\S+) \(by Slurm\)", log, re.MULTILINE)[-2:].count("node3") == 0
    summary = read_summary(folder)
    assert (summary["status"], summary["world_size"], list(summary["left_out"])) == ("success", 2, ["node3"])
    assert logs(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"Attempt 1 began without node3: node3 is \d+ % slower than the median \(", page)
    history = [json.loads(line) for line in (tmp_path / "health.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [{node["host"] for node in row["slow"]} <= {"node3"} for row in history] == [True]


def test_a_spare_node_takes_the_place_of_one_whose_rank_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = submit(asleep(SPARED), folder, "--rehearse", overrides=[*SLOW_STEPS, "run.epochs=5"])
    wait_until(lambda: has_begun(folder) and bool(RunFolder(folder).checkpoints.files()), folder / "job.log")
    (killed,) = [rank for rank in ranks(folder) if _node_of(rank) == "node2"]
    os.kill(killed, signal.SIGKILL)
    begin = time.monotonic()
    while not RunFolder(folder).attempts.read():
        assert time.monotonic() < begin + _NOTICED_S
        time.sleep(0.1)
    log = _log_at_the_end(job, folder)
    assert re.findall(r"/run on (.*), without (.*)$", log, re.MULTILINE) == [
        ("node1 node2", "node3"),
        ("node1 node3", "node2"),
    ]
    for rank, nodes in enumerate((("node1", "node1"), ("node2", "node3"))):
        assert tuple(re.findall(rf"^rank {rank} of 2 on (\S+) \(by Slurm\)", log, re.MULTILINE)) == nodes
    assert "restart 1 of at most 1, without node2, which failed\n" in log
    summary = read_summary(folder)
    assert (summary["status"], list(summary["left_out"])) == ("success", ["node2"])
    assert logs(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "was restarted automatically without node2" in (tmp_path / "page.html").read_text(encoding="utf-8")
