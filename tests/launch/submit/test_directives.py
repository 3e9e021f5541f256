"""What a scheduler's directives round, rename or refuse, apart from the scripts that were reviewed."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from launch.submit.jobspec import JobSpec
from tests.launch.golden_jobs import CASES, job

pytestmark = pytest.mark.usefixtures("with_mxnet")


def _render(spec: JobSpec) -> str:
    return spec.scheduler.render(spec)


def _script(name: str, *overrides: str, job_name: str = "digits") -> str:
    cluster, given, runs = CASES[name]
    return _render(replace(job(load_cluster(cluster, [*given, *overrides]), runs), name=job_name))


@pytest.mark.parametrize(("seconds", "minutes"), [(3600, 60), (3601, 61), (60, 1), (119, 2)])
def test_lsf_takes_whole_minutes_and_gets_no_fewer(seconds: int, minutes: int) -> None:
    overrides = [f"cluster.scheduler.wall_time_s={seconds}", "cluster.scheduler.notice_s=10"]
    assert f"#BSUB -W {minutes}\n" in _script("lsf.sh", *overrides)


@pytest.mark.parametrize(("seconds", "clock"), [(3600, "01:00:00"), (86399, "23:59:59"), (360061, "100:01:01")])
@pytest.mark.parametrize(("name", "key"), [("slurm-pyxis.sh", "--time="), ("pbs-apptainer.sh", "walltime="),
                                           ("gridengine.sh", "h_rt=")])  # fmt: skip
def test_others_take_hours_minutes_and_seconds(name: str, key: str, seconds: int, clock: str) -> None:
    assert f"{key}{clock}\n" in _script(name, f"cluster.scheduler.wall_time_s={seconds}")


@pytest.mark.parametrize(("job_name", "told"), [("digits", "digits"), ("2019-record", "run-2019-record")])
def test_grid_engine_takes_no_name_that_begins_with_a_digit(job_name: str, told: str) -> None:
    assert f"#$ -N {told}\n" in _script("gridengine.sh", job_name=job_name)


def test_pbs_takes_fifteen_characters_of_a_name() -> None:
    assert "#PBS -N nvidia-v06-n130\n" in _script("pbs-apptainer.sh", job_name="nvidia-v06-n130-seed-1")


def test_slurm_gives_a_rank_its_share_of_the_cores() -> None:
    assert "#SBATCH --cpus-per-task=4\n" in _script("slurm-gloo.sh"), "8 cores, 2 ranks"
    assert "#SBATCH --cpus-per-task=1\n" in _script("slurm-gloo.sh", "cluster.node.cores=1")


@pytest.mark.parametrize(
    ("name", "queue", "account"),
    [
        ("slurm-gloo.sh", "#SBATCH --partition=long", "#SBATCH --account=vision"),
        ("gridengine.sh", "#$ -q long", "#$ -P vision"),
        ("pbs-apptainer.sh", "#PBS -q long", "#PBS -A vision"),
        ("lsf.sh", "#BSUB -q long", "#BSUB -P vision"),
        ("kubernetes.yaml", "  namespace: long", "  labels:\n    kueue.x-k8s.io/queue-name: vision"),
    ],
)
def test_a_job_names_its_queue_and_who_pays_if_the_cluster_file_does(name: str, queue: str, account: str) -> None:
    def lines(queue: str, account: str) -> set[str]:
        paths = ["cluster.paths.data=/shared/data", "cluster.paths.runs=/shared/runs"]
        overrides = [*paths, f"cluster.scheduler.queue={queue}", f"cluster.scheduler.account={account}"]
        return set(_script(name, *overrides).splitlines())

    named, unnamed = lines("long", "vision"), lines("''", "''")
    assert named - unnamed == {line for words in (queue, account) for line in words.splitlines()}
    assert unnamed <= named


def test_a_job_asks_for_the_gpus_of_its_ranks() -> None:
    gpus = ("cluster.device=gpu", "cluster.communication.backend=nccl", "cluster.communication.kind=horovod")
    assert '#BSUB -gpu "num=4/host"\n' in _script("lsf.sh", *gpus, "cluster.ranks_per_node=4")
    assert ":ngpus=4\n" in _script("pbs-apptainer.sh")
    assert "#SBATCH --gpus-per-node=8\n" in _script("slurm-pyxis.sh")
    assert "gpu" not in _script("slurm-gloo.sh"), "these ranks compute on the CPU"
    for own in ("--gres=gpu:8", "--gpus=16", "-G 16", "--tres-per-node=gres/gpu:8", "--gres=none"):
        script = _script("slurm-pyxis.sh", f"cluster.scheduler.resources=['{own}']")
        assert f"#SBATCH {own}\n" in script
        assert "--gpus-per-node" not in script


def test_lsf_takes_a_resource_as_a_requirement_unless_it_is_an_option() -> None:
    script = _script("lsf.sh", "cluster.scheduler.resources=['-n {num_nodes}', 'span[ptile=1]']")
    assert {"#BSUB -n 2", '#BSUB -R "span[ptile=1]"'} <= set(script.splitlines())


def test_slurm_signals_a_job_before_its_limit_only_if_there_is_a_time_for_it() -> None:
    assert "#SBATCH --signal=B:USR1@120\n" in _script("slurm-gloo.sh", "cluster.scheduler.notice_s=120")
    assert "#SBATCH --signal" not in _script("slurm-gloo.sh", "cluster.scheduler.notice_s=0")


def test_a_job_that_slurm_moves_stays_away_from_all_hosts_that_it_was_kept_off() -> None:
    script = _script("slurm-pyxis.sh", "cluster.scheduler.resources=['--exclude=bad7', '--exclude=bad8,bad9']")
    assert '"ExcNodeList=bad7,bad8,bad9,$without"' in script
    assert '"ExcNodeList=$without"' in _script("slurm-pyxis.sh", "cluster.scheduler.resources=[]")


@pytest.mark.parametrize(
    ("name", "wanted", "unwanted"),
    [
        ("pbs-apptainer.sh", ["#PBS -r y"], ["#PBS -r n"]),
        ("gridengine.sh", ["#$ -r y"], ["#$ -r n"]),
        ("lsf.sh", ["#BSUB -r", '#BSUB -Q "76"'], []),
        ("slurm-pyxis.sh", ["#SBATCH --requeue"], ["#SBATCH --no-requeue"]),
    ],
)
def test_a_scheduler_is_told_whether_it_may_queue_the_job_again(
    name: str, wanted: list[str], unwanted: list[str]
) -> None:
    def told(requeue: str) -> list[str]:
        restarts = ["cluster.scheduler.max_restarts=0"] if requeue == "false" else []
        lines = _script(name, f"cluster.scheduler.requeue={requeue}", *restarts).splitlines()
        return [line for line in lines if line in (*wanted, *unwanted)]

    assert told("true") == wanted
    assert told("false") == unwanted


def _select(*overrides: str) -> list[str]:
    lines = _script("lsf.sh", "cluster.scheduler.kind=pbs", *overrides).splitlines()
    return [line.removeprefix("#PBS ") for line in lines if line.startswith("#PBS -l")]


def test_a_chunk_of_pbs_has_the_cores_and_gpus_of_a_node_and_what_the_cluster_file_asks_for() -> None:
    on_cpu = ["cluster.num_nodes=3", "cluster.ranks_per_node=2"]
    walltime = next(line for line in _select(*on_cpu) if "walltime" in line)
    bare = [*on_cpu, "cluster.node.cores=null"]
    assert _select(*bare) == ["-l select=3:mpiprocs=2", walltime, "-l place=scatter"]
    assert _select(*on_cpu, "cluster.node.cores=8")[0] == "-l select=3:mpiprocs=2:ncpus=8"
    asked = "cluster.scheduler.resources=[mem=64gb, '-l place=pack', '-l software=x']"
    assert _select(*bare, asked) == [
        "-l select=3:mpiprocs=2:mem=64gb", walltime, "-l place=pack", "-l software=x"
    ]  # fmt: skip
    assert _select(*bare, "cluster.scheduler.resources=['-l software=x']")[2:] == ["-l place=scatter", "-l software=x"]


@pytest.mark.parametrize(
    ("name", "special"),
    [("pbs-apptainer.sh", ":^"), ("lsf.sh", "%"), ("gridengine.sh", ":,"), ("slurm-gloo.sh", "")],
)
def test_a_folder_is_refused_for_each_character_that_a_scheduler_takes_for_its_own(name: str, special: str) -> None:
    cluster, given, _ = CASES[name]
    spec = job(load_cluster(cluster, given), 1)
    for character in "\"'\\$`\n" + special:
        with pytest.raises(UserError) as refusal:
            _render(replace(spec, run_folders=(Path(f"/shared/a{character}b"),)))
        assert f"does not accept a path with {character!r} in it; give another folder with --run-dir" in str(
            refusal.value
        )
    for character in ":^%,":
        if character not in special:
            text = _render(replace(spec, run_folders=(Path(f"/shared/a{character}b"),)))
            assert f"/shared/a{character * (2 if character == '%' and 'slurm' in name else 1)}b/job." in text


def test_grid_engine_asks_for_its_resources_and_keeps_them_when_hosts_are_left_out() -> None:
    script = _script("gridengine.sh", "cluster.scheduler.resources=['-l gpu=1', 'rt_F={num_nodes}', '-pe mpi 2']")
    options = [line.removeprefix("#$ ") for line in script.splitlines() if line.startswith("#$")]
    assert options[-3:] == ["-l gpu=1", "-l rt_F=512", "-pe mpi 2"]
    (limit,) = [option.removeprefix("-l ") for option in options if "h_rt" in option]
    assert f'qalter -l {limit},gpu=1,rt_F=512,"hostname=$without" "$JOB_ID" && exit 99\n' in script
