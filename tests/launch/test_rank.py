"""``rank.sh`` and ``supervise_rank.sh``: a rank's number under every launcher, its cores, its report if killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import run_program

_SLURM = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURMD_NODENAME": "beta",
}  # fmt: skip
_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def _rank(variables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return run_program(ROOT / "launch" / "rank.sh", *command, env={"PATH": os.environ["PATH"], **variables})


def _horovod_variables(variables: dict[str, str]) -> dict[str, str]:
    done = _rank(variables, "env")
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("HOROVOD_"))


@pytest.mark.skipif(shutil.which("ip") is None, reason="ip, which knows the interface of an address, is not here")
def test_over_gloo_the_ranks_of_srun_get_the_variables_that_horovodrun_sets() -> None:
    told = _horovod_variables({**_SLURM, "HOROVOD_CONTROLLER": "gloo", "RANK_LOCAL_SIZE": "2", "RANK_WORLD_SIZE": "4"})
    del told["HOROVOD_CONTROLLER"]
    assert told == {
        "HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "HOROVOD_HOSTNAME": "node1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_IFACE": "lo",
    }  # fmt: skip


def _on_host(folder: Path, hosts: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``rank.sh env`` as a rank of two nodes over Gloo, on a host named alpha with these lines in /etc/hosts."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n", encoding="utf-8")
    script = f"hostname alpha && mount --bind {folder}/hosts /etc/hosts && exec {ROOT}/launch/rank.sh env"
    told = {**_SLURM, "HOROVOD_CONTROLLER": "gloo", "RANK_LOCAL_SIZE": "2", "PATH": os.environ["PATH"], **variables}
    done = run_program("unshare", "--uts", "--mount", "bash", "-c", script, env=told)
    if done.stderr.startswith(("unshare: ", "hostname: ", "mount: ")):
        pytest.skip(f"a host name of one's own is not allowed here: {done.stderr.strip()}")
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")
@pytest.mark.parametrize("given", [{"NCCL_SOCKET_IFNAME": "=ib0"}, {"HOROVOD_GLOO_IFACE": "ib0"}])
def test_ranks_of_two_nodes_over_gloo_use_the_interface_of_the_cluster_file(
    tmp_path: Path, given: dict[str, str]
) -> None:
    done = _on_host(tmp_path, "192.0.2.7 alpha", given)
    assert "HOROVOD_GLOO_IFACE=ib0" in done.stdout.splitlines(), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")
@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            "127.0.1.1 alpha",
            "the name of this host, alpha, means 127.0.1.1, where ranks of other nodes cannot reach it",
        ),
        ("169.254.3.1 alpha", "the name of this host, alpha, means 169.254.3.1, where ranks of other nodes cannot"),
        ("", "the name of this host, alpha, has no address, which ranks over Gloo need"),
    ],
)
def test_a_host_whose_name_leads_nowhere_is_refused_in_one_line(tmp_path: Path, hosts: str, message: str) -> None:
    done = _on_host(tmp_path, hosts, {"HOROVOD_GLOO_IFACE": "ib0"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {message}")
    assert "; give alpha its network address in /etc/hosts" in done.stderr


def test_over_mpi_no_variable_is_set_and_mpirun_is_believed_within_a_slurm_job() -> None:
    assert _horovod_variables({**_SLURM, **_MPI, "HOROVOD_CONTROLLER": "mpi"}) == {"HOROVOD_CONTROLLER": "mpi"}
    assert "rank 1 of 2 on beta (by Open MPI)" in _rank({**_SLURM, **_MPI}, "true").stderr


def test_a_rank_runs_on_its_own_cores_and_reports_them_in_one_line() -> None:
    core = str(max(os.sched_getaffinity(0)))
    done = _rank({**_MPI, "RANK_CORES": f"0 {core}"}, "nproc")
    assert done.stdout == "1\n"
    assert done.stderr.count("\n") == 1
    assert f"local rank 1, cores {core}, memory near node" in done.stderr


def test_cores_that_were_not_granted_are_left_alone_and_named() -> None:
    done = _rank({**_MPI, "RANK_CORES": "0 4000"}, "true")
    assert done.returncode == 0
    assert "not on cores 4000, which it was not granted" in done.stderr


_BUSES = ("0000:1b:00.0", "0000:43:00.0", "0001:9b:00.0", "0001:c3:00.0")


def _gpus(folder: Path, near: dict[str, str], siblings: dict[int, str]) -> dict[str, str]:
    """Make a /sys and a driver's list of GPUs; return the variables of a rank on a node of them."""
    for bus, cores in near.items():
        (folder / "gpus" / bus).mkdir(parents=True)
        (folder / "bus" / "pci" / "devices" / bus).mkdir(parents=True)
        (folder / "bus" / "pci" / "devices" / bus / "local_cpulist").write_text(f"{cores}\n", encoding="utf-8")
    for core, threads in siblings.items():
        (folder / f"devices/system/cpu/cpu{core}/topology").mkdir(parents=True)
        listed = folder / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        listed.write_text(f"{threads}\n", encoding="utf-8")
    places = {"RANK_SYS": str(folder), "RANK_GPUS": str(folder / "gpus")}
    return {**places, "RANK_DEVICE": "gpu", "RANK_LOCAL_SIZE": str(len(near)), "RANK_CORES_BY": "gpu"}


@pytest.mark.medium
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared")
@pytest.mark.parametrize(
    ("near", "siblings", "visible", "expected"),
    [
        (["0", "0", "1", "1"], {}, "", ["", "", "", ""]),  # fewer cores than ranks
        (["1", "0"], {}, "", ["1", "0"]),
        (["1", "0"], {}, "1,0", ["0", "1"]),
        (["0-1", "0-1"], {}, "", ["0", "1"]),
        (["0,1", "0,1"], {0: "0-1", 1: "0-1"}, "", ["", ""]),  # two threads of one core
        (["0-1", "1"], {0: "0,4", 1: "1,5"}, "", ["0,1", "1"]),
        (
            ["0-3,8-11", "5,6"],
            {8: "0,8", 9: "1,9", 10: "2,10", 11: "3,11"},
            "",
            ["0-3", ""],
        ),  # 5 and 6 were not granted
        (["1", "0"], {}, "GPU-8c0c7c1e,GPU-3a1d", ["", ""]),
        (["1", "0"], {}, "4,5", ["", ""]),
    ],
)
def test_a_rank_on_a_gpu_runs_on_its_share_of_the_cores_at_that_gpu(
    near: list[str], siblings: dict[int, str], visible: str, expected: list[str], tmp_path: Path
) -> None:
    if os.sched_getaffinity(0) & {0, 1, 2, 3, 4, 5} != {0, 1}:
        pytest.skip("the cores of this machine have other numbers")
    variables = _gpus(tmp_path, dict(zip(_BUSES, near, strict=False)), siblings)
    variables |= {"RANK_CORES": " ".join(["0-1"] * len(near)), **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    for local_rank, cores in enumerate(expected):
        number = {"OMPI_COMM_WORLD_RANK": str(local_rank), "OMPI_COMM_WORLD_SIZE": str(len(near))}
        done = _rank({**variables, **number, "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}, "nproc")
        told = done.stderr
        assert (done.returncode, told.count("\n")) == (0, 1), told
        assert done.stdout == ("1\n" if cores in ("0", "1") else "2\n")
        assert f"cores {cores} at its GPU, " in told if cores else "cores 0-1, memory" in told, told


def test_ranks_that_have_not_all_gpus_of_a_node_run_on_the_cores_of_the_cluster_file(tmp_path: Path) -> None:
    core = str(max(os.sched_getaffinity(0)))
    two = {**_gpus(tmp_path, dict.fromkeys(_BUSES, "0"), {}), "RANK_LOCAL_SIZE": "2", "RANK_CORES": f"0 {core}"}
    one = {**two, "RANK_GPUS": str(tmp_path / "none"), "RANK_LOCAL_SIZE": "1", "RANK_CORES": core}
    for variables, number in ((two, "1"), (one, "0")):
        done = _rank({**_MPI, **variables, "OMPI_COMM_WORLD_LOCAL_RANK": number}, "true")
        assert f"local rank {number}, cores {core}, memory" in done.stderr


def test_gpu_and_adapters_follow_the_local_rank() -> None:
    tables = {"RANK_DEVICE": "gpu", "RANK_HCAS": "mlx5_0 mlx5_1", "CUDA_VISIBLE_DEVICES": "4,6"}
    done = _rank({**_MPI, **tables}, "printenv", "UCX_NET_DEVICES", "CUDA_VISIBLE_DEVICES")
    assert done.stdout == "mlx5_1:1\n4,6\n"
    assert "GPU 6, MPI's adapter mlx5_1, NCCL's all" in done.stderr
    done = _rank({**_MPI, **tables, "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, "true")
    assert "MPI's adapter mlx5_1, NCCL's mlx5_0,mlx5_1\n" in done.stderr


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "fusion"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021", "0"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  515.65.01  Release Build  (root@node-1.2.3)", "0"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.61.05  Thu Sep 29 05:30:25 UTC 2022", ""),
        ("something else", ""),
    ],
)
def test_a_driver_that_cannot_load_fused_operators_gets_none(line: str, fusion: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 9.3.0\n", encoding="utf-8")
    tables = {"RANK_DEVICE": "gpu", "RANK_DRIVER_FILE": str(tmp_path / "version")}
    done = _rank({**_MPI, **tables}, "printenv", "MXNET_USE_FUSION")
    assert done.stdout.strip() == fusion
    assert (", no fusion (driver R" in done.stderr) == bool(fusion)
    assert _rank({**_MPI, **tables, "MXNET_USE_FUSION": "1"}, "printenv", "MXNET_USE_FUSION").stdout == "1\n"
    assert _rank({**_MPI, **tables, "RANK_DEVICE": "cpu"}, "printenv", "MXNET_USE_FUSION").stdout == ""


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "no launcher says which rank this is"),
        ({**_MPI, "RANK_WORLD_SIZE": "8"}, "Open MPI started 2 ranks, the cluster file says 8"),
        ({**_MPI, "RANK_DEVICE": "gpu", "CUDA_VISIBLE_DEVICES": "0"}, "local rank 1 sees GPUs 0 only; ask for GPUs by"),
    ],
)
def test_a_rank_without_a_number_or_with_a_wrong_number_of_ranks_or_gpus_is_refused_also_in_the_run_s_folder(
    variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").touch()
    done = _rank(variables, "true", str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("failure_*.json")]
    assert [(row["rank"], row["status"], row["second_hand"]) for row in rows] == [(1, 2, False)] * bool(variables)
    assert all(row["message"].startswith(message) for row in rows)


def _supervised(folder: Path, *command: str) -> list[str | Path]:
    (folder / "config.yaml").touch()
    return [ROOT / "launch" / "supervise_rank.sh", "3", "beta", *command, folder]


@pytest.mark.parametrize(
    ("code", "status", "message", "killed_by"),
    [
        ("kill -9 $$", 137, "was killed by signal 9", 9),
        ("kill -ALRM $$", 142, "was ended by SIGALRM, by which its watchdog ends a rank that stands still", 14),
        ("exit 195", 195, "ended with status 195", None),
        ("exit 0", 76, "ended with status 0 before the run was over", None),
    ],
)
def test_a_rank_that_a_signal_kills_or_its_launcher_ends_is_named_in_the_run_folder(
    code: str, status: int, message: str, killed_by: int | None, tmp_path: Path
) -> None:
    command = _supervised(tmp_path, "bash", "-c", code, "-m", "train")  # the words of a rank of a run
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == status
    row = json.loads((tmp_path / "failure_3.json").read_text(encoding="utf-8"))
    assert abs(row.pop("time") - time.time()) < 60
    assert row == {
        "rank": 3, "host": "beta", "step": None, "message": message, "killed_by": killed_by, "second_hand": True,
        "status": status,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [("exit 76", 76, None), ("trap - USR1; kill -USR1 $$", 75, "stopped by SIGUSR1"), ("kill -9 $$", 137, None)],
)
def test_a_signal_is_passed_on_to_the_rank_whose_status_is_kept(
    tmp_path: Path, code: str, status: int, said: str | None
) -> None:
    script = f"trap '{code}' USR1; echo ready; while true; do sleep 0.05; done"
    with subprocess.Popen(_supervised(tmp_path, "bash", "-c", script), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == status
    note = tmp_path / "failure_3.json"
    assert (json.loads(note.read_text(encoding="utf-8"))["message"] if note.exists() else None) == said
