"""Every scheduler of the registry has a complete module, and a cluster file may name it."""

import re

import pytest

from configs.load import load_cluster
from configs.registry import SCHEDULERS, module_of
from launch.submit.scheduler import JobScheduler, all_schedulers, render, scheduler_of
from tests.launch.golden_jobs import job


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_of_the_registry_has_a_description_and_writes_scripts(kind: str) -> None:
    module = module_of(SCHEDULERS, kind)
    scheduler = scheduler_of(kind)
    assert isinstance(scheduler, JobScheduler)
    assert module.__all__ == ["SCHEDULER", "render"]
    assert callable(module.render)
    assert load_cluster("laptop", [f"cluster.scheduler.kind={kind}"]).scheduler.kind == kind
    assert set(scheduler.host_finders) <= set(scheduler.launchers)
    assert scheduler.watch.format(job="7") != scheduler.watch
    assert scheduler.cancel.format(job="7") != scheduler.cancel


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "srun"])
@pytest.mark.parametrize("kind", ["slurm", "gridengine", "pbs", "lsf", "none"])
def test_a_launcher_gets_the_hosts_of_the_job_once_and_in_the_way_that_it_knows(kind: str, launcher: str) -> None:
    if launcher not in scheduler_of(kind).launchers:
        return
    place = [f"cluster.scheduler.kind={kind}", f"cluster.launcher={launcher}", "cluster.num_nodes=2"]
    place += ["cluster.scheduler.wall_time_s=600"] if kind != "none" else []
    place += ["cluster.communication.backend=mpi"] if launcher == "mpirun" else []
    script = render(job(load_cluster("laptop", place), runs=1))
    launch = script.partition("launcher=(")[2].partition("\n)")[0]
    finds_hosts_itself = launcher == "srun" or (kind, launcher) == ("slurm", "mpirun")
    expected = [] if finds_hosts_itself else ["-hostfile" if launcher == "mpirun" else "-H"]
    assert [word for word in launch.split() if word in ("-hostfile", "-H")] == expected
    assert ('>"$folder/hosts"' in script) == ("-hostfile" in expected)


@pytest.mark.parametrize(
    ("kind", "output", "job_id"),
    [
        ("slurm", "7", "7"),
        ("slurm", "7;cluster", "7"),
        ("gridengine", "7", "7"),
        ("pbs", "7.server", "7.server"),
        ("lsf", "Job <7> is submitted to queue <normal>.", "7"),
        ("kubernetes", "mpijob.kubeflow.org/digits-x7f2k", "mpijob.kubeflow.org/digits-x7f2k"),
    ],
)
def test_the_job_id_is_found_in_what_the_submit_command_prints(kind: str, output: str, job_id: str) -> None:
    found = re.search(scheduler_of(kind).id_in_output, output)
    assert found is not None
    assert found[1] == job_id


def test_schedulers_can_be_told_apart_by_the_variables_of_their_jobs() -> None:
    variables = [scheduler.job_variable for scheduler in all_schedulers() if scheduler.job_variable]
    assert {"LSB_JOBID", "PBS_NODEFILE", "PE_HOSTFILE", "SLURM_JOB_ID"} <= set(variables)
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(
    ("kind", "submit", "watch", "cancel", "interactive"),
    [
        ("slurm", "sbatch --parsable", "squeue --jobs=7", "scancel 7", "salloc"),
        ("gridengine", "qsub -terse", "qstat -j 7", "qdel 7", "qrsh"),
        ("pbs", "qsub", "qstat -f 7", "qdel 7", "qsub -I"),
        ("lsf", "bsub <", "bjobs -l 7", "bkill 7", "bsub -I"),
        ("kubernetes", "kubectl create -o name -f", "kubectl get 7", "kubectl delete 7", ""),
    ],
)
def test_the_commands_of_a_scheduler_are_those_of_its_manual(
    kind: str, submit: str, watch: str, cancel: str, interactive: str
) -> None:
    scheduler = scheduler_of(kind)
    assert (scheduler.submit, scheduler.interactive) == (submit, interactive)
    assert (scheduler.watch.format(job=7), scheduler.cancel.format(job=7)) == (watch, cancel)


@pytest.mark.parametrize(
    ("kind", "launchers", "host_finders", "runtimes", "has"),
    [
        ("none", "horovodrun mpirun", "", "none apptainer singularity", ""),
        ("slurm", "srun mpirun local", "srun mpirun", "none apptainer singularity enroot",
         "limit notice slots requeue"),
        ("gridengine", "mpirun horovodrun local", "mpirun", "none apptainer singularity", "limit requeue"),
        ("pbs", "mpirun horovodrun local", "mpirun", "none apptainer singularity", "limit requeue own-log"),
        ("lsf", "mpirun horovodrun local", "mpirun horovodrun", "none apptainer singularity", "limit requeue own-log"),
        ("kubernetes", "mpirun", "", "docker", "limit own-log in-image"),
    ],
)  # fmt: skip
def test_what_works_inside_a_job_is_known_of_each_scheduler(
    kind: str, launchers: str, host_finders: str, runtimes: str, has: str
) -> None:
    scheduler = scheduler_of(kind)
    assert scheduler.launchers == tuple(launchers.split())
    assert scheduler.host_finders == tuple(host_finders.split())
    assert scheduler.runtimes == tuple(runtimes.split())
    found = {
        "limit": scheduler.has_time_limit,
        "notice": scheduler.sends_notice,
        "slots": scheduler.places_mpirun_ranks,
        "requeue": scheduler.requeue,
        "own-log": scheduler.redirection,
        "in-image": scheduler.runs_script_in_image,
    }
    assert [name for name, value in found.items() if value] == has.split()
    assert scheduler.script_name == ("job.yaml" if kind == "kubernetes" else "job.sh")


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("slurm", "SLURM_JOB_ID"), ("gridengine", "PE_HOSTFILE"), ("pbs", "PBS_NODEFILE"), ("lsf", "LSB_JOBID"),
     ("kubernetes", ""), ("none", "")],
)  # fmt: skip
def test_the_inside_of_a_job_is_known_by_a_variable_of_its_scheduler(kind: str, variable: str) -> None:
    assert scheduler_of(kind).job_variable == variable
