"""Ranks on two machines that are really two: by ssh or Slurm, over the right interface, or refused."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from configs.load import ROOT
from configs.registry import has_engine
from launch.submit.jobspec import IMAGE_PROGRAM
from logs.folder import RunFolder
from tests.launch.machines import PREFIX, Machine, start_slurm, two_machines
from tests.launch.mpi import require_mpi
from tests.launch.stand_in import write_program
from tests.runs import SHORT, FinishedRun, read_summary

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("machines")]

_REFUSED_S = 30
_HOSTS, _BY_MPI = ("--hosts", "alpha,beta"), "cluster.communication.backend=mpi"
_MPIRUN = ["cluster.launcher=mpirun", *([_BY_MPI] if has_engine("mxnet") else [])]  # PyTorch's wheels have no MPI
_SLURM = [f"cluster.{key}" for key in ("launcher=srun", "scheduler.kind=slurm", "scheduler.wall_time_s=600")]
_WAYS = {
    # Where the first interface leads nowhere, horovodrun may give its own search for another one up.
    "horovodrun": ["cluster.launcher=horovodrun", "cluster.node.interface=eth0"],
    "mpirun": _MPIRUN,
    "srun": [*_SLURM, "cluster.communication.backend=gloo"],
}
"""Under Slurm, ranks of virtual nodes meet over MPI (`tests/launch/submit/test_slurm.py`)."""


_FIRST = {
    "link-local": {"alpha": "169.254.7.1/16", "beta": "169.254.7.2/16"},
    "unreachable": {"alpha": "10.66.0.1/24", "beta": "10.66.0.2/24"},
    "unreachable, the head's only": {"alpha": "10.66.0.1/24"},
}
"""First addresses, which lead nowhere. They are smaller than the others: of two ranks over Gloo, the one with the
smaller address listens."""


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Run alpha and beta, which share this folder; with a key of ``_FIRST``, their first interface leads nowhere."""
    first = _FIRST.get(getattr(request, "param", ""))
    with two_machines(tmp_path_factory.mktemp("machines"), first=first) as found:
        yield found


@pytest.fixture(scope="module")
def slurm(machines: dict[str, Machine]) -> str:
    """Run a Slurm of alpha and beta; return what its clients need in their environment."""
    return start_slurm(machines)


@pytest.fixture(scope="module")
def data(machines: dict[str, Machine], shared_digits: Path) -> str:
    """Return the setting that names the machines' copy of the data set."""
    copy = machines["alpha"].shared / "data"
    shutil.copytree(shared_digits, copy / "digits")
    return f"cluster.paths.data={copy}"


def _submit(machine: Machine, folder: Path, slurm: str | None, *settings: str) -> str:
    """Submit a short run; return the number of its job."""
    more = ["cluster.num_nodes=2", "cluster.ranks_per_node=1"]
    sets = [word for each in [*SHORT, *more, *settings] for word in ("--set", each)]
    words = ["submit", "digits", "--cluster", "laptop", "--run-dir", str(folder), *sets, *(() if slurm else _HOSTS)]
    done = machine.run("env", *filter(None, (slurm,)), sys.executable, "-I", "-m", "launch.submit", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("job ")[1].split(",")[0]


def _ended(machine: Machine, folder: Path, slurm: str | None, job: str) -> str:
    """Wait until nobody is left of a job, and return what it printed."""
    environment, give_up = ["env", *filter(None, (slurm,))], time.monotonic() + 240
    # A job of Slurm has left the queue when grep finds no line.
    asked = ["bash", "-c", f"squeue --noheader --jobs {job} | grep -q ." if slurm else f"kill -0 {job}"]
    while machine.run(*environment, *asked).returncode == 0:
        assert time.monotonic() < give_up, (folder / "job.log").read_text(encoding="utf-8")
        time.sleep(0.5)
    return (folder / "job.log").read_text(encoding="utf-8")


def _train_as_one(machines: dict[str, Machine], way: str, data: str, slurm: str | None, whole: FinishedRun) -> None:
    """Train on two machines by a way of ``_WAYS``, with the bits of a run on one machine."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if way in ("horovodrun", "mpirun") and shutil.which(way, path=path) is None:
        pytest.skip(f"{way} is not installed here")
    if _BY_MPI in _WAYS[way]:
        require_mpi()
    folder = machines["alpha"].shared / way
    job = _submit(machines["alpha"], folder, slurm, data, *_WAYS[way])
    log = _ended(machines["alpha"], folder, slurm, job)
    assert "rank 1 of 2 on beta" in log, log
    found = read_summary(folder)
    assert (found["status"], found["world_size"]) == ("success", 2), log
    assert found["weights_checksum"] == read_summary(whole.folder)["weights_checksum"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mpirun", "srun"])
def test_ranks_of_two_machines_train_with_the_bits_of_one_machine(
    way: str, machines: dict[str, Machine], short_run: FinishedRun, data: str, request: pytest.FixtureRequest
) -> None:
    _train_as_one(machines, way, data, request.getfixturevalue("slurm") if way == "srun" else None, short_run)


_TRAIN_JOB = [
    "cluster.engine.name=torch", "cluster.num_nodes=2", "cluster.ranks_per_node=1", "cluster.launcher=torchrun",
    "cluster.scheduler={kind: trainjob, wall_time_s: 600, training_runtime: resnet-records-torch}",
]  # fmt: skip


@pytest.mark.slow
def test_pods_of_a_train_job_train_by_the_variables_that_kubeflow_trainer_sets(
    machines: dict[str, Machine], data: str
) -> None:
    """The machines stand for the pods of the torch runtime, and this program for that of the image."""
    if not has_engine("torch"):
        pytest.skip("PyTorch is not installed here")
    shared = machines["alpha"].shared
    name, folder, kubectl = "digits-x7f2k", shared / "pods", shared / "bin" / "kubectl"
    write_program(kubectl, f"echo trainjob.trainer.kubeflow.org/{name}")
    container = f"cluster.container={{runtime: docker, image: i, mounts: ['claim:{shared}']}}"
    sets = [word for each in [*SHORT, *_TRAIN_JOB, container, data] for word in ("--set", each)]
    submit = ["-m", "launch.submit", "digits", "--cluster", "laptop", "--run-dir", str(folder), *sets]
    path = f"PATH={kubectl.parent}{os.pathsep}{os.environ['PATH']}"
    done = machines["alpha"].run("env", path, sys.executable, "-I", *submit)
    assert f"job trainjob.trainer.kubeflow.org/{name}, 2 ranks on 2 nodes" in done.stdout, done.stderr
    script = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))["spec"]["trainer"]["command"][2]
    script = script.replace(f"{IMAGE_PROGRAM}/.venv/bin/python", sys.executable).replace(str(IMAGE_PROGRAM), str(ROOT))
    first = f"{name}-node-0-0.{name}"
    pods = []
    for rank, machine in enumerate(machines.values()):
        with (shared / "machines" / f"{machine.name}.hosts").open("a", encoding="utf-8") as table:
            table.write(f"{PREFIX}1 {first}\n")
        # *Source*: kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/torch/torch.go.
        pet = {"NNODES": 2, "NPROC_PER_NODE": 1, "NODE_RANK": rank, "MASTER_ADDR": first, "MASTER_PORT": 29500}
        variables = [f"PET_{key}={value}" for key, value in pet.items()]
        # Without CC, each machine would compile the update for its /tmp.
        command = machine.command(["env", *variables, "CC=none", "bash", "-c", script])
        pods.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert f"on {name}-node-0-0 {name}-node-0-1\n" in said[0]
    assert "rank 1 of 2 on beta (by torchrun)" in said[1]
    found = read_summary(folder)
    assert (found["status"], found["world_size"]) == ("success", 2), said


@pytest.mark.slow
def test_hosts_with_unlike_copies_of_data_set_or_program_are_told_before_the_run(machines: dict[str, Machine]) -> None:
    alpha, beta = machines.values()
    own = ROOT / "train" / "schedule.py"
    for seed, machine in enumerate(machines.values()):
        words = ["-m", "data", "prepare", "digits", "/tmp/data/digits", "--seed", str(seed)]
        assert machine.run(sys.executable, "-I", *words).returncode == 0
    for what, setting in (("data sets", "cluster.paths.data=/tmp/data"), ("programs", "data.source=synthetic")):
        folder = alpha.shared / what.replace(" ", "-")
        job = _submit(alpha, folder, None, "cluster.launcher=horovodrun", setting)
        log = _ended(alpha, folder, None, job)
        assert f"the ranks' {what} are not the same before the run" in read_summary(folder)["failure"], log
        assert not (folder / "checkpoints").exists()
        beta.run("bash", "-c", f"cp {own} /tmp && echo >>/tmp/{own.name} && mount --bind /tmp/{own.name} {own}")
    beta.run("umount", "--all-targets", str(own))


@pytest.mark.slow
def test_a_spare_host_takes_the_place_of_one_whose_rank_was_killed(machines: dict[str, Machine]) -> None:
    alpha = machines["alpha"]
    folder = alpha.shared / "spare"
    sets = ["cluster.num_nodes=1", "cluster.scheduler.max_restarts=1", "data.source=synthetic"]
    sets += ["run.max_steps=null", "run.epochs=6", "run.eval_every_epochs=1", "run.eval_first_epoch=1"]
    job = _submit(alpha, folder, None, "cluster.launcher=horovodrun", *sets)
    give_up = time.monotonic() + 120
    while not RunFolder(folder).checkpoints.files():
        assert time.monotonic() < give_up, (folder / "job.log").read_text(encoding="utf-8")
        time.sleep(0.05)
    alpha.run("pkill", "-KILL", "--oldest", "--full", f"^[^ ]*python[^ ]* -I -u -m train {folder}$")
    log = _ended(alpha, folder, None, job)
    assert re.findall(r" on (\w+), without (\w+)$", log, re.MULTILINE) == [("alpha", "beta"), ("beta", "alpha")]
    assert re.findall(r"rank 0 of 1 on (\w+) \(", log) == ["alpha", "beta"]
    (attempt,) = RunFolder(folder).attempts.read()
    assert attempt.cause.startswith("rank 0 on alpha was killed by signal 9"), attempt.cause
    summary = read_summary(folder)
    assert (summary["status"], list(summary["left_out"])) == ("success", ["alpha"])


def _reach(machine: Machine, host: str, folder: Path) -> str:
    """Return what the check of a job script prints on a machine about another one, in one line and in time."""
    begin = time.monotonic()
    done = machine.run(sys.executable, "-I", "-m", "launch.submit.reach", str(folder), machine.name, host)
    assert time.monotonic() - begin < _REFUSED_S
    assert done.returncode == (2 if done.stderr else 0)
    assert done.stderr.count("\n") <= 1
    return done.stderr


@pytest.mark.slow  # by waiting
def test_hosts_that_do_not_reach_each_other_are_named_with_the_remedy(
    machines: dict[str, Machine], tmp_path: Path
) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    assert _reach(alpha, "beta", alpha.shared) == ""
    assert "gamma: the name cannot be resolved on alpha: add it to /etc/hosts" in _reach(alpha, "gamma", alpha.shared)
    assert "beta: /tmp/mine is not there: put the runs on a file system that all hosts share" in _reach(
        alpha, "beta", Path("/tmp/mine")
    )
    keys = alpha.shared / "machines" / "known_hosts"
    known = keys.read_text(encoding="utf-8")
    keys.write_text("", encoding="utf-8")
    refused = _reach(alpha, "beta", alpha.shared)
    keys.write_text(known, encoding="utf-8")
    assert "beta: Host key verification failed; ssh beta must work from alpha without a prompt" in refused
    # A firewall of beta's that lets ssh pass, and nothing else.
    for rule in ("pref 10 sport 22 lookup main", "pref 20 blackhole"):
        done = beta.run("ip", "rule", "add", "to", f"{PREFIX}1", "ipproto", "tcp", *rule.split())
        assert done.returncode == 0, done.stderr
    refused = _reach(alpha, "beta", alpha.shared)
    beta.run("ip", "rule", "del", "pref", "20")
    assert f"beta: alpha cannot connect to {PREFIX}2: timed out; launchers and ranks use any port" in refused
    # A host that is gone.
    beta.run("ip", "link", "set", "eth0", "down")
    refused = _reach(alpha, "beta", alpha.shared)
    beta.run("ip", "link", "set", "eth0", "up")
    assert re.search(r"beta: .*(No route to host|timed out); ssh beta must work from alpha", refused)


_MET_S = 10
_START = """
import sys
from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start.commands import run_under

command, settings = sys.argv[1].split(), sys.argv[2:]
cluster = load_cluster("laptop", settings)
outcome = run_under(cluster, [*command, *settings], rank_environment(cluster), hosts=("alpha", "beta"))
sys.exit(outcome.exit_status)
"""
_ADD = """
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
  int rank, sum = 0;
  static int many[1 << 20];
  MPI_Init(&count, &words);
  double begin = MPI_Wtime();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int own = rank + 5;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, many, 1 << 20, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  char path[4096];
  snprintf(path, sizeof path, "%s/met-%d", words[1], rank);
  FILE *told = fopen(path, "w");
  fprintf(told, "%d %.2f", sum, MPI_Wtime() - begin);
  fclose(told);
  return MPI_Finalize();
}
"""


def _meet(machine: Machine, folder: Path, command: str, *settings: str) -> None:
    """Start two ranks from a machine, and see that they have met in time."""
    common = ["num_nodes=2", "ranks_per_node=1", f"communication.timeout_s={3 * _MET_S}"]
    words = [f"cluster.{each}" for each in (*common, *settings)]
    try:
        done = machine.run(sys.executable, "-c", _START, f"{command} {folder}", *words)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the ranks have not met: {error.stderr!r}")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        total, seconds, *interfaces = (folder / f"met-{rank}").read_text(encoding="utf-8").split()
        # The program for MPI names none. Without a name, Gloo takes the address of the host's name.
        assert (total, interfaces or ["eth0"]) == ("11", ["eth0"])
        assert float(seconds) < _MET_S


@pytest.mark.slow
@pytest.mark.parametrize("machines", ["unreachable, the head's only"], indirect=True)
def test_horovodrun_trains_over_the_interface_of_the_cluster_file(
    machines: dict[str, Machine], short_run: FinishedRun, data: str
) -> None:
    _train_as_one(machines, "horovodrun", data, None, short_run)
    path = machines["alpha"].shared / "horovodrun" / "environment.json"
    assert json.loads(path.read_text(encoding="utf-8"))["variables"]["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.slow
@pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed")
@pytest.mark.parametrize("machines", ["unreachable"], indirect=True)
def test_ranks_of_pytorch_meet_over_gloo_though_the_first_interface_leads_nowhere(machines: dict[str, Machine]) -> None:
    settings = ["engine.name=torch", "launcher=mpirun", "communication.kind=torch_distributed"]
    folder = machines["alpha"].shared / "torch"
    folder.mkdir()
    _meet(machines["alpha"], folder, f"{sys.executable} -m tests.launch.meeting", *settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machines", "more"),
    [("link-local", []), ("unreachable", ["node.interface=eth0"])],
    indirect=["machines"],
    ids=["link-local", "unreachable"],
)
def test_mpi_leaves_link_local_addresses_out_and_takes_the_interface_of_the_cluster_file(
    machines: dict[str, Machine], more: list[str]
) -> None:
    if missing := [each for each in ("mpirun", "mpicc", "ompi_info") if shutil.which(each) is None]:
        pytest.skip(f"not here: {', '.join(missing)}")
    alpha = machines["alpha"]
    program = alpha.shared / "add"
    subprocess.run(["mpicc", "-x", "c", "-", "-o", program], input=_ADD, text=True, check=True)
    engine = "torch" if has_engine("torch") else "mxnet"  # whose setting the program does not need
    kind = "torch_distributed" if engine == "torch" else "horovod"
    settings = [f"engine.name={engine}", f"communication.kind={kind}", "launcher=mpirun", "communication.backend=mpi"]
    folder = alpha.shared / "mpi"
    folder.mkdir()
    _meet(alpha, folder, str(program), *settings, *more)
