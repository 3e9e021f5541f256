"""What a scheduler's directives round, rename or refuse, apart from the scripts that were reviewed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from launch.submit.requirements import require_submittable
from launch.submit.scheduler import render
from tests.launch.golden_jobs import CASES, job


def _script(name: str, *overrides: str, job_name: str = "digits") -> str:
    cluster, given, runs = CASES[name]
    return render(replace(job(load_cluster(cluster, [*given, *overrides]), runs), name=job_name))


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
        ("kubernetes.yaml", "  namespace: long", None),
    ],
)
def test_a_job_names_its_queue_and_who_pays_if_the_cluster_file_does(
    name: str, queue: str, account: str | None
) -> None:
    def lines(queue: str, account: str) -> set[str]:
        paths = ["cluster.paths.data=/shared/data", "cluster.paths.runs=/shared/runs"]
        overrides = [*paths, f"cluster.scheduler.queue={queue}", f"cluster.scheduler.account={account}"]
        return set(_script(name, *overrides).splitlines())

    named, unnamed = lines("long", "vision"), lines("''", "''")
    assert named - unnamed == {line for line in (queue, account) if line}
    assert unnamed <= named


def test_a_job_asks_for_the_gpus_of_its_ranks() -> None:
    gpus = ("cluster.device=gpu", "cluster.communication.backend=nccl", "cluster.communication.kind=horovod")
    assert '#BSUB -gpu "num=4/host"\n' in _script("lsf.sh", *gpus, "cluster.ranks_per_node=4")
    assert ":ngpus=4\n" in _script("pbs-apptainer.sh")


def test_lsf_takes_a_resource_as_a_requirement_unless_it_is_an_option() -> None:
    script = _script("lsf.sh", "cluster.scheduler.resources=['-n {num_nodes}', 'span[ptile=1]']")
    assert {"#BSUB -n 2", '#BSUB -R "span[ptile=1]"'} <= set(script.splitlines())


@pytest.mark.parametrize("hosts", [(), ("a",), ("a", "b", "c")])
def test_as_many_hosts_are_named_as_the_cluster_has_nodes(hosts: tuple[str, ...]) -> None:
    cluster = load_cluster("laptop", ["cluster.num_nodes=2", "cluster.launcher=horovodrun"])
    require_submittable(cluster, ("a", "b"))
    with pytest.raises(UserError):
        require_submittable(cluster, hosts)


def test_slurm_signals_a_job_before_its_limit_only_if_there_is_a_time_for_it() -> None:
    assert "#SBATCH --signal=B:USR1@120\n" in _script("slurm-gloo.sh", "cluster.scheduler.notice_s=120")
    assert "#SBATCH --signal" not in _script("slurm-gloo.sh", "cluster.scheduler.notice_s=0")


def test_a_job_that_slurm_moves_stays_away_from_all_hosts_that_it_was_kept_off() -> None:
    script = _script("slurm-pyxis.sh", "cluster.scheduler.resources=['--exclude=bad7', '--exclude=bad8,bad9']")
    assert '"ExcNodeList=bad7,bad8,bad9,$without"' in script
    assert '"ExcNodeList=$without"' in _script("slurm-pyxis.sh", "cluster.scheduler.resources=[]")
