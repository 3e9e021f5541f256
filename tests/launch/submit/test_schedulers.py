"""What differs between schedulers and between kinds of jobs: commands, directives, lines of the script, and mounts."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from configs.blocks.jobs import SchedulerKind
from configs.errors import UserError
from configs.load import load_cluster
from launch.submit.jobspec import JobSpec
from launch.submit.schedulers import SCHEDULERS
from launch.submit.script import job_text
from tests.launch.golden_jobs import job

pytestmark = pytest.mark.usefixtures("with_mxnet")

LIMIT = "scheduler.wall_time_s=600"
MPI = ["launcher=mpirun", "communication.backend=mpi"]
SLURM = ["scheduler.kind=slurm", "launcher=srun", LIMIT]
GE = ["scheduler.kind=gridengine", *MPI, LIMIT]
PBS = ["scheduler.kind=pbs", *MPI, LIMIT]
LSF = ["scheduler.kind=lsf", *MPI, LIMIT]
HOSTS = ["launcher=horovodrun", "num_nodes=2"]
POD = ["container.runtime=docker", "container.image=a", "container.mounts=['training:/shared']"]
KUBERNETES = ["scheduler.kind=kubernetes", *MPI, *POD, LIMIT]
TRAIN_JOB = ["scheduler.kind=trainjob", "scheduler.training_runtime=mpi", *MPI, *POD, LIMIT]
IMAGE = ["container.runtime=enroot", "container.image=a.sqsh"]
GPU = ["device=gpu", "communication.backend=nccl", "communication.kind=horovod"]
SPARES = ["scheduler.spare_nodes=1", "scheduler.max_restarts=2"]
REQUEUE = "scheduler.requeue=true"
MOVES = [REQUEUE, "scheduler.max_restarts=2"]
NAMED = ["scheduler.queue=long", "scheduler.account=vision"]


def _spec(*sets: str, place: str = "laptop") -> JobSpec:
    shared = ("paths.data=/shared/data", "paths.runs=/shared/runs")
    return job(load_cluster(place, [f"cluster.{each}" for each in (*shared, *sets)]), 1)


def _script(*sets: str, **changes: object) -> str:
    spec = replace(_spec(*sets), **changes)  # type: ignore[arg-type]
    return job_text(spec)


def test_every_kind_of_a_cluster_file_has_a_scheduler_that_its_jobs_can_be_told_by() -> None:
    assert set(get_args(SchedulerKind)) == set(SCHEDULERS)
    variables = [each.job_variable for each in SCHEDULERS.values() if each.job_variable]
    assert {"LSB_JOBID", "PBS_NODEFILE", "PE_HOSTFILE", "SLURM_JOB_ID"} <= set(variables)
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(
    ("kind", "output", "job_id"),
    [
        ("slurm", "7;cluster", "7"),
        ("slurm", "*** Welcome ***\n7", "7"),
        ("gridengine", "7", "7"),
        ("pbs", "7.server", "7.server"),
        ("lsf", "Job <7> is submitted to queue <normal>.", "7"),
        ("kubernetes", "mpijob.kubeflow/d-x7", "mpijob.kubeflow/d-x7"),
    ],
)
def test_the_id_of_a_job_is_found_in_what_its_scheduler_says(kind: str, output: str, job_id: str) -> None:
    found = re.search(SCHEDULERS[kind].id_in_output, output)
    assert found is not None
    assert found[1] == job_id


@pytest.mark.parametrize(
    ("sets", "wanted", "unwanted"),
    [
        # LSF takes whole minutes, and gets no fewer; the others take hours, minutes and seconds.
        ([*LSF, "scheduler.wall_time_s=3601"], "#BSUB -W 61\n", ""),
        ([*SLURM, "scheduler.wall_time_s=360061"], "#SBATCH --time=100:01:01\n", ""),
        # Slurm gives a rank its share of the cores, and at least one.
        ([*SLURM, "node.cores=1"], "#SBATCH --cpus-per-task=1\n", ""),
        (SLURM, "", "--cpus-per-task"),
        # A job asks for the GPUs of its ranks, unless the cluster file does so in Slurm's own words.
        ([*LSF, *GPU, "ranks_per_node=4"], '#BSUB -gpu "num=4/host"\n', ""),
        ([*PBS, *GPU, "ranks_per_node=4"], "#PBS -l select=1:mpiprocs=4:ngpus=4\n", ""),
        ([*SLURM, *GPU, "scheduler.resources=['--gres=gpu:8']"], "#SBATCH --gres=gpu:8\n", "--gpus-per-node"),
        ([*SLURM, *GPU, "scheduler.resources=['--gpus=16']"], "#SBATCH --gpus=16\n", "--gpus-per-node"),
        ([*SLURM, *GPU, "scheduler.resources=['-G 16']"], "#SBATCH -G 16\n", "--gpus-per-node"),
        ([*SLURM, *GPU, "scheduler.resources=['--tres-per-node=gres/gpu:8']"], "=gres/gpu:8\n", "--gpus-per-node"),
        # What the cluster file asks for besides: an option, or a request in the scheduler's own form.
        ([*LSF, "scheduler.resources=['-n {num_nodes}', 'span[ptile=1]']"], '#BSUB -n 1\n#BSUB -R "span[ptile=1]"\n',
         ""),
        ([*GE, "num_nodes=3", "scheduler.resources=['-pe mpi {world_size}', 'n={num_nodes}', 'r={ranks_per_node}']"],
         "#$ -pe mpi 6\n#$ -l n=3\n#$ -l r=2\n", ""),
        ([*PBS, "num_nodes=3", "node.cores=8", "scheduler.resources=[mem=64gb, '-l software=x']"],
         "#PBS -l select=3:mpiprocs=2:ncpus=8:mem=64gb\n", ""),
        ([*PBS, "scheduler.resources=['-l software=x']"], "#PBS -l place=scatter\n#PBS -l software=x\n", ""),
        ([*PBS, "scheduler.resources=['-l place=pack']"], "#PBS -l place=pack\n", "scatter"),
        # The notice before the limit comes from Slurm, else from a timer; a list of hosts has no limit.
        ([*SLURM, "scheduler.notice_s=0"], "", "#SBATCH --signal"),
        ([*GE, "scheduler.notice_s=120"], "  sleep 480 &\n", ""),
        ([*GE, "scheduler.notice_s=0"], "", "timer"),
        # Whether the scheduler may queue the job again, and whether the script asks for it near the limit.
        ([*PBS, "scheduler.requeue=false"], "#PBS -r n\n", "#PBS -r y"),
        ([*GE, "scheduler.requeue=false"], "#$ -r n\n", "limit_is_near"),
        ([*LSF, "scheduler.requeue=false"], "", "#BSUB -r"),
        # Without spares, a job asks for other hosts where a second failure can be and others can be had.
        ([*SLURM, *MOVES], '"ExcNodeList=$without"', ""),
        ([*SLURM, *MOVES], '      --hosts "any ${hosts[*]}") ||\n', ""),
        ([*SLURM, *MOVES, "scheduler.resources=['--exclude=bad7', '--exclude=bad8,bad9']"],
         '"ExcNodeList=bad7,bad8,bad9,$without"', ""),
        ([*GE, *MOVES, "scheduler.resources=['-l gpu=1', 'rt_F={num_nodes}', '-pe mpi 2']"],
         """qalter -l 'h_rt=00:10:00,gpu=1,rt_F=1',"hostname=$without" "$JOB_ID" && exit 99\n""", ""),
        ([*SLURM, REQUEUE, "scheduler.max_restarts=1"], "", "--hosts"),
        ([*SLURM, "scheduler.requeue=false", "scheduler.max_restarts=2"], "", "--hosts"),
        ([*PBS, *MOVES], "", "--hosts"),
        ([*SLURM, *MOVES, *SPARES], '      --hosts "${hosts[*]} ${granted[*]}") ||\n', "any"),
        # A job with spare nodes asks for them, and its ranks choose among the hosts.
        ([*GE, *SPARES, "scheduler.resources=['-pe mpi {world_size}']"], "#$ -pe mpi 4\n", "--distribution"),
        ([*PBS, *SPARES], "#PBS -l select=2:mpiprocs=2\n", ""),
        ([*LSF, *SPARES], "#BSUB -n 4\n", ""),
        ([*KUBERNETES, *SPARES], "      replicas: 2\n", ""),
        ([*TRAIN_JOB, *SPARES], "    numNodes: 2\n", ""),
        # Nodes are examined first where the doctor can start ranks.
        ([*SLURM, "scheduler.check_first=true", "container.runtime=apptainer", "container.image=a.sif"], "",
         "launch.doctor"),
        ([*TRAIN_JOB, "engine.name=torch", "launcher=torchrun", "scheduler.check_first=true"], "", "launch.doctor"),
        # Ranks are served where their launcher does not.
        ([*SLURM, "engine.name=torch", "num_nodes=3", "ranks_per_node=4"],
         "launch.start.rendezvous --kind torch_distributed 3 4; }", ""),
        # mpirun alone may run as root, and passes on what chooses kernels.
        ([*SLURM, *MPI], "export SLURM_EXPORT_ENV=ALL\n", ""),
        ([*SLURM, *MPI, *SPARES], '-hostfile "$folder/hosts"', ""),
        # Variables are quoted.
        ([*SLURM, "environment.OMPI_MCA_b='two words'"], "export OMPI_MCA_b='two words'\n", ""),
        # A job names its queue and who pays; golden/ has what Slurm is told.
        ([*GE, *NAMED], "#$ -q long\n#$ -P vision\n", ""),
        ([*PBS, *NAMED], "#PBS -q long\n#PBS -A vision\n", ""),
        ([*LSF, *NAMED], "#BSUB -q long\n#BSUB -P vision\n", ""),
        ([*KUBERNETES, *NAMED], '  namespace: "long"\n  labels:\n    kueue.x-k8s.io/queue-name: "vision"\n', ""),
        # Grid Engine has no option for GPUs, but the site's own request or queue.
        ([*GE, *GPU, "scheduler.resources=['-l gpu=2']"], "#$ -l gpu=2\n", ""),
        ([*GE, *GPU, "scheduler.queue=gpu.q"], "#$ -q gpu.q\n", ""),
        # The local launcher of a job starts the servers, too.
        ([*SLURM, "launcher=local", "communication.kind=parameter_server"], "parameter_server --servers 1 2)\n", ""),
        # What only other launchers and backends cannot do is not refused.
        ([*SLURM, "num_nodes=80", "communication.backend=mpi"], "#SBATCH --nodes=80\n", ""),
    ],
)  # fmt: skip
def test_a_script_says_what_its_cluster_file_asks_for(sets: list[str], wanted: str, unwanted: str) -> None:
    """What stands in the scripts of golden/ is not asked for again."""
    script = _script(*sets)
    assert wanted in script
    assert not unwanted or unwanted not in script


@pytest.mark.parametrize(
    ("sets", "name", "told"),
    [
        (GE, "2019-record", "#$ -N run-2019-record\n"),  # Grid Engine takes no name that begins with a digit.
        (PBS, "nvidia-v06-n130-seed-1", "#PBS -N nvidia-v06-n130\n"),  # Every PBS takes fifteen characters.
        (LSF, "nvidia-v06-n130-seed-1", "#BSUB -J nvidia-v06-n130-seed-1\n"),
    ],
)
def test_a_job_has_a_name_that_its_scheduler_takes(sets: list[str], name: str, told: str) -> None:
    assert told in _script(*sets, name=name)


@pytest.mark.parametrize("sets", [PBS, LSF, GE, SLURM])
def test_a_folder_is_refused_for_a_character_that_a_scheduler_may_take_for_its_own(sets: list[str]) -> None:
    for character in "\"'\\$`\n :^%,":
        with pytest.raises(UserError, match=r"allowed: letters, digits and .*; give another folder with --run-dir"):
            _script(*sets, run_folders=(Path(f"/shared/a{character}b"),))
    assert "/shared/a-b_c@d/job." in _script(*sets, run_folders=(Path("/shared/a-b_c@d"),))


APPTAINER = ["container.runtime=apptainer", "container.image=a.sif", "container.mounts=['/models:/m:ro']"]
CHARLIECLOUD = ["container.runtime=charliecloud", "container.image=/images/records"]
BINDS = "--bind /shared/data:/shared/data --bind /shared/runs:/shared/runs"
PROGRAM = "/opt/resnet-records/launch/rank.sh /opt/resnet-records/.venv/bin/python"


@pytest.mark.parametrize(
    ("sets", "place", "command"),
    [
        (APPTAINER, "laptop", f"apptainer exec --bind /models:/m:ro {BINDS} a.sif {PROGRAM}"),
        (APPTAINER, "dgx-a100", f"apptainer exec --nv --bind /models:/m:ro {BINDS} a.sif {PROGRAM}"),
        ([*APPTAINER, "container.runtime=singularity"], "laptop", "singularity exec --bind /models:/m:ro"),
        (CHARLIECLOUD, "dgx-a100", f"ch-run --write {BINDS} /images/records -- {PROGRAM}"),
        ([*CHARLIECLOUD, "container.image=/a.sqfs"], "dgx-a100", f"ch-run {BINDS} /a.sqfs -- {PROGRAM}"),
        (IMAGE, "laptop", PROGRAM),  # srun enters it.
        ([], "laptop", "/shared/resnet-records/launch/rank.sh /shared/resnet-records/.venv/bin/python"),
    ],
)
def test_a_rank_enters_its_container_by_itself_unless_srun_does(sets: list[str], place: str, command: str) -> None:
    assert " ".join(_spec(*SLURM, *sets, place=place).rank_command).startswith(f"{command} ")


def test_each_folder_that_a_run_needs_is_mounted_once_unless_a_mount_has_it_already() -> None:
    apart = replace(_spec(*SLURM, *IMAGE), run_folders=(Path("/elsewhere/one"), Path("/elsewhere/two")))
    assert apart.mounts == ["/shared/data:/shared/data", "/elsewhere:/elsewhere"]
    given = _spec(*SLURM, *IMAGE, "container.mounts=['/disk:/shared/data', '/x:/shared/run']")
    assert given.mounts == ["/disk:/shared/data", "/x:/shared/run", "/shared/runs:/shared/runs"]
    assert _spec(*SLURM, *IMAGE, "container.mounts=['/disk:/shared:ro']").mounts == ["/disk:/shared:ro"]
