"""What differs between schedulers and between kinds of jobs: commands, lines of the script, mounts, and refusals."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from configs.blocks.jobs import SchedulerKind
from configs.errors import UserError
from configs.load import load_cluster
from launch.submit.jobspec import JobSpec
from launch.submit.requirements import require_submittable
from launch.submit.schedulers import SCHEDULERS
from tests.launch.golden_jobs import job, script_of

pytestmark = pytest.mark.usefixtures("with_mxnet")

LIMIT = ["scheduler.wall_time_s=600"]
GE = ["scheduler.kind=gridengine", "launcher=mpirun", "communication.backend=mpi", *LIMIT]
SLURM = ["scheduler.kind=slurm", "launcher=srun", *LIMIT]
HOSTS = ["launcher=horovodrun", "num_nodes=2"]
SHARED = ["paths.data=/shared/data", "paths.runs=/shared/runs"]
POD = ["container.runtime=docker", "container.image=a", "container.mounts=['training:/shared']"]
IMAGE = ["container.runtime=enroot", "container.image=a.sqsh"]


def _spec(*sets: str, place: str = "laptop") -> JobSpec:
    return job(load_cluster(place, [f"cluster.{each}" for each in (*SHARED, *sets)]), 1)


def _script(*sets: str) -> str:
    return script_of(_spec(*sets).cluster)


def _array(script: str, name: str) -> list[str]:
    return script.partition(f"readonly {name}=(")[2].partition("\n)")[0].split()


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_is_complete_and_a_cluster_file_may_name_it(kind: str) -> None:
    scheduler = SCHEDULERS[kind]
    assert load_cluster("laptop", [f"cluster.scheduler.kind={kind}"]).scheduler.kind == kind
    assert set(scheduler.host_finders) <= set(scheduler.launchers)
    assert scheduler.watch.format(job="7") != scheduler.watch
    assert scheduler.cancel.format(job="7") != scheduler.cancel


def test_every_kind_of_a_cluster_file_has_a_scheduler_that_its_jobs_can_be_told_by() -> None:
    assert set(get_args(SchedulerKind)) == set(SCHEDULERS)
    variables = [each.job_variable for each in SCHEDULERS.values() if each.job_variable]
    assert {"LSB_JOBID", "PBS_NODEFILE", "PE_HOSTFILE", "SLURM_JOB_ID"} <= set(variables)
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(
    ("kind", "output", "job_id", "commands"),
    [
        ("slurm", "7;cluster", "7", ["sbatch --parsable", "squeue --jobs=7", "scancel 7", "salloc"]),
        ("gridengine", "7", "7", ["qsub -terse", "qstat -j 7", "qdel 7", "qrsh"]),
        ("pbs", "7.server", "7.server", ["qsub", "qstat -f 7.server", "qdel 7.server", "qsub -I"]),
        ("lsf", "Job <7> is submitted to queue <normal>.", "7", ["bsub <", "bjobs -l 7", "bkill 7", "bsub -I"]),
        ("kubernetes", "mpijob.kubeflow.org/digits-x7f2k", "mpijob.kubeflow.org/digits-x7f2k",
         ["kubectl create -o name -f", "kubectl get mpijob.kubeflow.org/digits-x7f2k",
          "kubectl delete mpijob.kubeflow.org/digits-x7f2k", ""]),
        ("trainjob", "trainjob.trainer.kubeflow.org/digits-x7f2k", "trainjob.trainer.kubeflow.org/digits-x7f2k",
         ["kubectl create -o name -f", "kubectl get trainjob.trainer.kubeflow.org/digits-x7f2k",
          "kubectl delete trainjob.trainer.kubeflow.org/digits-x7f2k", ""]),
    ],
)  # fmt: skip
def test_the_commands_of_a_scheduler_are_those_of_its_manual(
    kind: str, output: str, job_id: str, commands: list[str]
) -> None:
    scheduler = SCHEDULERS[kind]
    found = re.search(scheduler.id_in_output, output)
    assert found is not None
    assert found[1] == job_id
    watch, cancel = (command.format(job=job_id) for command in (scheduler.watch, scheduler.cancel))
    assert [scheduler.submit, watch, cancel, scheduler.interactive] == commands


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "srun"])
@pytest.mark.parametrize("kind", ["slurm", "gridengine", "pbs", "lsf", "none"])
def test_a_launcher_gets_the_hosts_of_the_job_once_and_in_the_way_that_it_knows(kind: str, launcher: str) -> None:
    place = [f"scheduler.kind={kind}", f"launcher={launcher}", "num_nodes=2", *(LIMIT if kind != "none" else [])]
    place += ["communication.backend=mpi"] if launcher == "mpirun" else []
    if launcher not in SCHEDULERS[kind].launchers:
        with pytest.raises(UserError, match=r"^cluster\.launcher: got"):
            _script(*place)
        return
    script = _script(*place)
    finds_hosts_itself = launcher == "srun" or (kind, launcher) == ("slurm", "mpirun")
    expected = [] if finds_hosts_itself else ["-hostfile" if launcher == "mpirun" else "-H"]
    assert [word for word in _array(script, "launcher") if word in ("-hostfile", "-H")] == expected
    assert ('>"$folder/hosts"' in script) == ("-hostfile" in expected)


@pytest.mark.parametrize(
    ("sets", "sleep"),
    [
        ([*GE, "scheduler.notice_s=120"], "  sleep 480 &"),
        ([*GE, "scheduler.notice_s=0"], None),
        ([*SLURM, "scheduler.notice_s=120"], None),
        ([*HOSTS, "scheduler.notice_s=120"], None),
    ],
)
def test_a_timer_announces_a_limit_that_the_scheduler_does_not(sets: list[str], sleep: str | None) -> None:
    lines = _script(*sets).splitlines()
    assert [line for line in lines if line.startswith("  sleep ")] == ([sleep] if sleep else [])
    assert ("readonly timer=$!" in lines) == bool(sleep)


@pytest.mark.parametrize("requeue", ["true", "false"])
def test_a_job_is_queued_again_near_its_limit_only_if_it_may_be(requeue: str) -> None:
    script = _script(*GE, f"scheduler.requeue={requeue}", "scheduler.max_restarts=0")
    found = [text in script for text in ("--near-limit", "limit_is_near=0", "limit_is_near=1", "|| exit 99")]
    assert found == [requeue == "true"] * 4


@pytest.mark.parametrize(
    ("sets", "moves"),
    [
        ([*SLURM, "scheduler.requeue=true", "scheduler.max_restarts=2"], True),
        ([*SLURM, "scheduler.requeue=true", "scheduler.max_restarts=1"], False),
        ([*SLURM, "scheduler.requeue=false", "scheduler.max_restarts=2"], False),
        (["scheduler.kind=pbs", *GE[1:], "scheduler.requeue=true", "scheduler.max_restarts=2"], False),
        ([*HOSTS, "scheduler.max_restarts=0"], False),
        ([*SLURM, "scheduler.requeue=true", "scheduler.max_restarts=2", "scheduler.spare_nodes=1"], False),
    ],
)
def test_a_job_without_spares_asks_for_other_hosts_where_a_second_failure_can_be_and_others_can_be_had(
    sets: list[str], moves: bool
) -> None:
    script = _script(*sets)
    assert ("# 80: a host failed twice" in script) is moves
    assert ("      --hosts any" in script) is moves


@pytest.mark.parametrize(
    ("sets", "asked"),
    [
        (SLURM, "#SBATCH --nodes=5"),
        ([*GE, "scheduler.resources=['-pe mpi {world_size}', 'n={num_nodes}']"], "#$ -pe mpi 10"),
        ([*GE, "scheduler.resources=['-pe mpi {world_size}', 'n={num_nodes}']"], "#$ -l n=5"),
        (["scheduler.kind=pbs", *GE[1:]], "#PBS -l select=5:mpiprocs=2"),
        (["scheduler.kind=lsf", *GE[1:]], "#BSUB -n 10"),
        (["scheduler.kind=kubernetes", *GE[1:], *POD], "      replicas: 5"),
        (["scheduler.kind=trainjob", "scheduler.training_runtime=mpi", *GE[1:], *POD], "    numNodes: 5"),
    ],
    ids=["slurm", "gridengine", "gridengine-resource", "pbs", "lsf", "kubernetes", "trainjob"],
)
def test_a_job_asks_for_spare_nodes_and_starts_its_ranks_on_those_that_it_chooses(sets: list[str], asked: str) -> None:
    """Three nodes of two ranks, and two to spare."""
    script = _script(*sets, "num_nodes=3", "scheduler.spare_nodes=2", "scheduler.max_restarts=1")
    assert asked in script.splitlines()
    assert "num_hosts=3\n" in script
    assert "  choose_hosts" in script.partition("launch() {")[2]


@pytest.mark.parametrize(
    ("sets", "checks"),
    [
        ([*SLURM, "scheduler.check_first=true"], True),
        ([*SLURM, "scheduler.check_first=false"], False),
        ([*GE, "scheduler.check_first=true"], True),
        ([GE[0], *LIMIT, "launcher=local", "scheduler.check_first=true"], True),
        ([GE[0], *LIMIT, "launcher=horovodrun", "scheduler.check_first=true"], True),
        ([*HOSTS, "scheduler.check_first=true"], True),
        ([*SLURM, "scheduler.check_first=true", "container.runtime=apptainer", "container.image=a.sif"], False),
    ],
)
def test_nodes_are_examined_first_where_the_doctor_can_start_ranks(sets: list[str], checks: bool) -> None:
    assert ("launch.doctor doctor --recipe" in _script(*sets)) is checks


@pytest.mark.parametrize(
    ("sets", "served"),
    [
        (
            [*SLURM, "communication.kind=horovod", "communication.backend=gloo"],
            "launch.start.rendezvous --kind horovod 1 2",
        ),
        ([*SLURM, "communication.kind=horovod", "communication.backend=mpi"], None),
        (
            [*SLURM, "engine.name=torch", "num_nodes=3", "ranks_per_node=4"],
            "launch.start.rendezvous --kind torch_distributed 3 4",
        ),
    ],
)
def test_ranks_are_served_where_their_launcher_does_not(sets: list[str], served: str | None) -> None:
    script = _script(*sets)
    assert (f' exec "$python" -I -m {served}; }}' in script) == bool(served)
    assert ("coproc" in script) == ('kill "$server"' in script) == bool(served)


def test_mpirun_alone_may_run_as_root_and_passes_on_what_chooses_kernels() -> None:
    for sets, is_mpirun in ((GE, True), (SLURM, False), (HOSTS, False)):
        script = _script(*sets)
        assert ("OMPI_ALLOW_RUN_AS_ROOT=1" in script) is is_mpirun
        assert ('"${inherited[@]}"' in script) is is_mpirun


@pytest.mark.parametrize(("cores", "share"), [(8, 4), (3, 1), (1, 1)])
def test_srun_gives_a_rank_its_share_of_the_cores_and_at_least_one(cores: int, share: int) -> None:
    launcher = _array(_script(*SLURM, f"node.cores={cores}"), "launcher")
    assert [word for word in launcher if word.startswith("--cpus-per-task")] == [f"--cpus-per-task={share}"]


def test_variables_are_exported_in_order_and_quoted() -> None:
    given = ["environment.OMPI_MCA_b='two words'", "environment.OMPI_MCA_a=a,b"]
    lines = [line for line in _script(*SLURM, *given).splitlines() if line.startswith("export ")]
    assert lines == sorted(lines)
    assert {"export OMPI_MCA_a='a,b'", "export OMPI_MCA_b='two words'"} <= set(lines)


def test_resources_have_the_numbers_of_nodes_and_ranks_in_them() -> None:
    asked = "scheduler.resources=['a={num_nodes}', 'b={ranks_per_node}', 'c={world_size}', plain]"
    assert _spec(*SLURM, "num_nodes=3", "ranks_per_node=4", asked).resources == ["a=3", "b=4", "c=12", "plain"]


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
@pytest.mark.parametrize("place", ["laptop", "dgx-a100"])
def test_a_rank_enters_its_container_by_itself_with_the_gpus_of_its_node_if_there_are_any(
    runtime: str, place: str
) -> None:
    container = [f"container.runtime={runtime}", "container.image=a.sif", "container.mounts=['/models:/m:ro']"]
    spec = _spec(*SLURM, *container, place=place)
    gpu = ["--nv"] if place == "dgx-a100" else []
    image, folders = "/opt/resnet-records", ("/shared/data", "/shared/runs")
    binds = [word for pair in ("/models:/m:ro", *(f"{each}:{each}" for each in folders)) for word in ("--bind", pair)]
    enter = [runtime, "exec", *gpu, *binds, "a.sif"]
    assert spec.rank_command[: len(enter) + 2] == [*enter, f"{image}/launch/rank.sh", f"{image}/.venv/bin/python"]


@pytest.mark.parametrize(("image", "options"), [("/images/records", ["--write"]), ("/images/records.sqfs", [])])
def test_charliecloud_makes_the_targets_of_mounts_in_the_folder_of_an_image(image: str, options: list[str]) -> None:
    container = ["container.runtime=charliecloud", f"container.image={image}"]
    binds = ["--bind", "/shared/data:/shared/data", "--bind", "/shared/runs:/shared/runs"]
    enter = ["ch-run", *options, *binds, image, "--", "/opt/resnet-records/launch/rank.sh"]
    assert _spec(*SLURM, *container, place="dgx-a100").rank_command[: len(enter)] == enter


def test_a_rank_outside_a_container_or_in_one_that_srun_enters_is_started_plainly() -> None:
    for sets, program in (([], "/shared/resnet-records"), (IMAGE, "/opt/resnet-records")):
        command = _spec(*SLURM, *sets).rank_command
        assert command[:2] == [f"{program}/launch/rank.sh", f"{program}/.venv/bin/python"]


def test_each_folder_that_a_run_needs_is_mounted_once_unless_a_mount_has_it_already() -> None:
    apart = replace(_spec(*SLURM, *IMAGE), run_folders=(Path("/elsewhere/one"), Path("/elsewhere/two")))
    assert apart.mounts == ["/shared/data:/shared/data", "/elsewhere:/elsewhere"]
    given = _spec(*SLURM, *IMAGE, "container.mounts=['/disk:/shared/data', '/x:/shared/run']")
    assert given.mounts == ["/disk:/shared/data", "/x:/shared/run", "/shared/runs:/shared/runs"]
    assert _spec(*SLURM, *IMAGE, "container.mounts=['/disk:/shared:ro']").mounts == ["/disk:/shared:ro"]


@pytest.mark.parametrize(
    ("hosts", "sets", "is_allowed"),
    [
        (1, ["num_nodes=2"], False),
        (2, ["num_nodes=2"], True),
        (3, ["num_nodes=2", "scheduler.max_restarts=1"], True),
        (3, ["num_nodes=2", "scheduler.check_first=true", "scheduler.spare_nodes=1"], True),
        (2, ["num_nodes=2", "scheduler.check_first=true", "scheduler.spare_nodes=1"], False),
        (2, ["num_nodes=2", *SLURM], False),
        (0, ["num_nodes=64", *SLURM], True),
    ],
)
def test_a_job_gets_its_hosts_from_the_scheduler_or_by_name_with_spares(
    hosts: int, sets: list[str], is_allowed: bool
) -> None:
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in ("launcher=horovodrun", *sets)])
    scheduler = SCHEDULERS[cluster.scheduler.kind]
    spec = replace(_spec(*SLURM), cluster=cluster, scheduler=scheduler, hosts=tuple("abc"[:hosts]))
    if is_allowed:
        require_submittable(spec)
        return
    with pytest.raises(UserError, match=f"^--hosts: got {hosts} hosts for num_nodes"):
        require_submittable(spec)


@pytest.mark.parametrize("sets", [["num_nodes=80", "communication.backend=mpi"], IMAGE], ids=["many ranks", "enroot"])
def test_what_only_other_launchers_and_backends_cannot_do_is_not_refused(sets: list[str]) -> None:
    assert _script(*SLURM, *sets).startswith("#!/usr/bin/env bash\n#SBATCH ")
