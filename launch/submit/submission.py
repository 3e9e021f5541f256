"""From a recipe and a cluster to a submitted job: run folders, job script, and the command that submits it."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT, load_run, with_resolved_paths
from configs.rank_variables import binding_environment, rank_environment
from configs.schema import Cluster, Recipe
from launch.run import open_run, short_path
from launch.submit.jobspec import IMAGE_PROGRAM, JobSpec
from launch.submit.requirements import require_submittable
from launch.submit.scheduler import JobScheduler, render, scheduler_of
from launch.submit.submitted import record_job, script_to_resume
from logs.attempts import left_out
from logs.disk import write_text
from logs.folder import CONFIG_FILE
from logs.redaction import has_secret, may_hold_secret


def make_job(recipe: Recipe, cluster: Cluster, hosts: tuple[str, ...], run_folders: tuple[Path, ...]) -> JobSpec:
    """Return the description of a job that trains ``recipe`` once in each of the run folders.

    Args:
        recipe: What each run trains.
        cluster: Where the job runs; relative paths in it become absolute.
        hosts: The machines of a cluster without a scheduler, else empty.
        run_folders: Absolute paths, which a container sees under the same names.
    """
    cluster = with_resolved_paths(cluster)
    is_in_image = scheduler_of(cluster.scheduler.kind).runs_script_in_image
    return JobSpec(
        name=recipe.name,
        cluster=cluster,
        run_folders=run_folders,
        program=IMAGE_PROGRAM if is_in_image else ROOT,
        python=IMAGE_PROGRAM / ".venv/bin/python" if is_in_image else Path(sys.executable),
        variables=rank_environment(cluster) | binding_environment(cluster),
        hosts=hosts,
    )


def submit_run(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Submit one run as a job of its own, as the studies do with each cell of their grids.

    Raises:
        UserError: No job can be made of the run, or the scheduler refuses the job.
    """
    require_submittable(cluster, ())
    submit_job(recipe, make_job(recipe, cluster, (), (folder.absolute(),)))


def submit_job(recipe: Recipe, spec: JobSpec) -> None:
    """Make the job's run folders, write the job script into each, submit it, and print how to watch and cancel the job.

    Raises:
        UserError: No job can be made of the run, or the scheduler refuses the job.
    """
    scheduler = scheduler_of(spec.cluster.scheduler.kind)
    script = render(spec)
    program = scheduler.submit.split()[0]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not on this machine; submit from a machine that has it, or use --dry-run")
    _make_folders(recipe, spec, script)
    if spec.hosts:
        job_id = _start_on_hosts(spec)
    else:
        try:
            job_id = _hand_over(scheduler, submit_command(spec))
        except UserError:
            for folder in spec.run_folders:
                shutil.rmtree(folder)
            raise
    record_job(spec.run_folders, job_id, spec.folder / scheduler.script_name)
    sys.stdout.write(_summary(spec, scheduler, job_id))


def submit_command(spec: JobSpec) -> str:
    """Return the shell command that submits the job's script."""
    scheduler = scheduler_of(spec.cluster.scheduler.kind)
    return f"{scheduler.submit} {shlex.quote(str(spec.folder / scheduler.script_name))}"


def _make_folders(recipe: Recipe, spec: JobSpec, script: str) -> None:
    """Make the run folders, each with a seed of its own and a copy of the job script."""
    script_name = scheduler_of(spec.cluster.scheduler.kind).script_name
    for number, folder in enumerate(spec.run_folders):
        run = recipe.run.model_copy(update={"seed": recipe.run.seed + number})
        open_run(recipe.model_copy(update={"run": run}), spec.cluster, folder)
        is_private = has_secret(spec.variables) or may_hold_secret(script)
        write_text(folder / script_name, script, is_private=is_private)


def resubmit(folder: Path) -> None:
    """Submit the job script of an unfinished run once more, and print how to watch and cancel the job.

    Raises:
        UserError: The run was not submitted, has ended or goes on, or the scheduler refuses the job.
    """
    script, runs = script_to_resume(folder)
    recipe, cluster = load_run(folder / CONFIG_FILE)
    scheduler = scheduler_of(cluster.scheduler.kind)
    command = " ".join([scheduler.submit, *_without_bad_hosts(cluster, scheduler, runs), shlex.quote(str(script))])
    if cluster.scheduler.kind == "none":
        job_id = _in_background(command, script.parent / "job.log")
    else:
        job_id = _hand_over(scheduler, command)
    record_job(runs, job_id, script)
    sys.stdout.write(_summary(make_job(recipe, cluster, (), tuple(runs)), scheduler, job_id))


def _without_bad_hosts(cluster: Cluster, scheduler: JobScheduler, runs: Sequence[Path]) -> list[str]:
    """Return the option that keeps the job off hosts that failed twice and off those that the cluster file names."""
    hosts = sorted({host for run in runs for host in left_out(run)})
    if not hosts or not scheduler.without:
        return []
    option = scheduler.without.format(hosts="")
    named = [word.removeprefix(option) for word in cluster.scheduler.resources if word.startswith(option)]
    sys.stderr.write(f"the job leaves out {', '.join(hosts)}, where ranks failed twice\n")
    return [shlex.quote(scheduler.without.format(hosts=",".join([*named, *hosts])))]


def _start_on_hosts(spec: JobSpec) -> str:
    """Start the script on this machine, in the background; return its process id."""
    return _in_background(submit_command(spec), spec.log)


def _in_background(command: str, log_file: Path) -> str:
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return str(process.pid)


def _hand_over(scheduler: JobScheduler, command: str) -> str:
    """Submit a script and return the job's id.

    Raises:
        UserError: The scheduler refuses the job.
    """
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"{scheduler.submit.split()[0]} refuses the job: {message}")
    output = done.stdout.strip()
    found = re.search(scheduler.id_in_output, output)
    return found[1] if found else output


def _summary(spec: JobSpec, scheduler: JobScheduler, job_id: str) -> str:
    log, folder = short_path(spec.log), short_path(spec.folder)
    watch = f"{scheduler.watch.format(job=job_id)}; tail -f {log}; ./run.sh watch {folder}"
    lines = [
        f"{spec.name}: job {job_id}, {spec.size}",
        *(f"  {short_path(folder)}" for folder in spec.run_folders),
        f"  watch   {watch}",
        f"  cancel  {scheduler.cancel.format(job=job_id)}",
    ]
    return "\n".join([*lines, ""])
