"""From a recipe and a cluster to a submitted job, and what becomes of the job: its status, its end, its resumption."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from configs.arguments import short_path
from configs.errors import UserError
from configs.load import ROOT, with_resolved_paths
from configs.plan import plan_run
from configs.rank_variables import binding_environment, rank_environment
from configs.registry import require_engine
from configs.schema import Cluster, Recipe
from launch.resume import require_unfinished
from launch.run import open_run
from launch.start.commands import require_mpi
from launch.start.inherited import left_out_options, without_jobs
from launch.submit.jobspec import IMAGE_PROGRAM, JobSpec
from launch.submit.requirements import require_submittable
from launch.submit.schedulers import SCHEDULERS
from launch.submit.script import job_text
from logs.checkpoints import step_of
from logs.disk import found_object, write_json, write_text
from logs.folder import UNFINISHED_MARK, RunFolder
from logs.redaction import may_hold_secret
from train.engine.parameters import require_parameters
from train.plan.before_run import require_fixed_step
from train.plan.memory import require_memory

ANSWER_S = 300
"""Time that a scheduler's command has. Slurm's own give up sooner, one that is stuck on a file server never does."""

JOB_FILE = "job.json"


def make_job(
    recipe: Recipe,
    cluster: Cluster,
    hosts: tuple[str, ...],
    run_folders: tuple[Path, ...],
    *,
    accept_minutes: float | None = None,
) -> JobSpec:
    """Return the description of a job that trains ``recipe`` once in each of the run folders.

    Args:
        recipe: What each run trains.
        cluster: Where the job runs; relative paths in it become absolute.
        hosts: The machines of a cluster without a scheduler, else empty.
        run_folders: Absolute paths, which a container sees under the same names.
        accept_minutes: See `JobSpec`.

    Raises:
        UserError: No job script could work on this cluster, the batch cannot be divided among the ranks, or a rank
            surely needs more memory than the cluster file says that it has.
    """
    spec = replace(_described(recipe, cluster, hosts, run_folders), accept_minutes=accept_minutes)
    require_submittable(spec)
    plan_run(recipe, cluster.world_size)
    require_memory(recipe, cluster)
    require_parameters(recipe, cluster)
    require_fixed_step(recipe, cluster)
    return spec


def _described(recipe: Recipe, cluster: Cluster, hosts: tuple[str, ...], run_folders: tuple[Path, ...]) -> JobSpec:
    scheduler, cluster = SCHEDULERS[cluster.scheduler.kind], with_resolved_paths(cluster)
    is_in_image = scheduler.runs_script_in_image
    return JobSpec(
        name=recipe.name,
        scheduler=scheduler,
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
    submit_job(recipe, make_job(recipe, cluster, (), (folder.absolute(),)))


def submit_job(recipe: Recipe, spec: JobSpec) -> None:
    """Make the job's run folders, write the job script into each, submit it, and print how to watch and cancel the job.

    Raises:
        UserError: No job can be made of the run, or the scheduler refuses the job.
    """
    program = spec.scheduler.submit.split()[0]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not on this machine; submit from a machine that has it, or use --dry-run")
    if spec.cluster.container.runtime == "none":  # the job runs in this environment
        require_engine(spec.cluster.engine.name)
        require_mpi(spec.cluster)
    _make_folders(recipe, spec, job_text(spec))
    try:
        _hand_over(spec)
    except UserError:
        for folder in spec.run_folders:
            shutil.rmtree(folder)
        raise


def submit_command(spec: JobSpec, *options: str) -> str:
    """Return the shell command that submits the job's script, with more options for the scheduler."""
    return " ".join([spec.scheduler.submit, *options, shlex.quote(str(spec.script))])


def _make_folders(recipe: Recipe, spec: JobSpec, script: str) -> None:
    """Make the run folders, each with a seed of its own and a copy of the job script."""
    for number, folder in enumerate(spec.run_folders):
        run = recipe.run.model_copy(update={"seed": recipe.run.seed + number})
        open_run(recipe.model_copy(update={"run": run}), spec.cluster, folder)
        is_private = may_hold_secret(spec.variables, script)
        write_text(folder / spec.script.name, script, is_private=is_private)


def _hand_over(spec: JobSpec, *options: str) -> None:
    """Submit the job's script, record the job in its run folders, and print how to watch and cancel it.

    Raises:
        UserError: The scheduler refuses the job.
    """
    scheduler, command = spec.scheduler, submit_command(spec, *options)
    if ignored := left_out_options():
        remedy = "a job asks for what the cluster file says (scheduler.queue, account, resources)"
        sys.stderr.write(f"warning: {', '.join(ignored)}: not handed over; {remedy}\n")
    if spec.cluster.scheduler.kind == "none":
        with spec.log.open("ab") as log:
            process = subprocess.Popen(
                shlex.split(command),
                env=without_jobs(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        job_id = str(process.pid)
    else:
        done = _ask(command)
        if done.returncode:
            raise UserError(f"{scheduler.submit.split()[0]} refuses the job: {_message(done)}")
        found = re.search(scheduler.id_in_output, done.stdout.strip())
        if found is None:
            said = " ".join(done.stdout.split()) or "nothing"
            remedy = "ask the scheduler whether there is a job, and end it, then try again"
            raise UserError(f"{scheduler.submit.split()[0]} names no job, but says {said!r}; {remedy}")
        job_id = found[1]
    submitted = datetime.now().astimezone().isoformat(timespec="seconds")
    runs = [str(each) for each in spec.run_folders]
    for folder in spec.run_folders:
        row = {"job": job_id, "script": str(spec.script), "runs": runs, "submitted": submitted}
        write_json(folder / JOB_FILE, row)
    watch = f"{scheduler.watch.format(job=job_id)}; tail -f {shlex.quote(short_path(spec.log))}"
    lines = [
        f"{spec.name}: job {job_id}, {spec.size}",
        *(f"  {short_path(folder)}" for folder in spec.run_folders),
        f"  watch   {watch}; ./run.sh watch {shlex.quote(short_path(spec.folder))}",
        f"  cancel  {scheduler.cancel.format(job=job_id)}",
    ]
    sys.stdout.write("\n".join([*lines, ""]))


def resubmit(folder: RunFolder) -> None:
    """Submit the job script of an unfinished run once more, and print how to watch and cancel the job.

    Raises:
        UserError: The run was not submitted, has ended or goes on, its job waits, or the scheduler refuses the job.
    """
    job, (recipe, cluster) = _job_of(folder), folder.settings
    script, runs = Path(job["script"]), tuple(Path(each) for each in job["runs"])
    if not script.is_file():
        command = f"./run.sh train --resume {shlex.quote(str(folder))}"
        raise UserError(f"{script}: the job script is missing; resume with {command} in a job")
    if owner := folder.claims.holder():
        raise UserError(f"{folder}: a run is active in it: {owner}; wait for its end, or cancel it with --cancel")
    require_unfinished(folder)
    question = SCHEDULERS[cluster.scheduler.kind].has.format(job=job["job"])
    if question and not _ask(question).returncode:
        raise UserError(f"{folder}: its job {job['job']} waits or runs; let it train, or end it with --cancel")
    (folder / UNFINISHED_MARK).touch()
    spec = _described(recipe, cluster, (), runs)
    _hand_over(spec, *_without_bad_hosts(spec))


def _without_bad_hosts(spec: JobSpec) -> list[str]:
    """Return the option that keeps the job off hosts that the runs leave out and off those that the file names."""
    hosts = sorted({host for run in spec.run_folders for host in RunFolder(run).attempts.left_out()})
    if not hosts or not spec.scheduler.without:
        return []
    option = spec.scheduler.without.format(hosts="")
    named = [word.removeprefix(option) for word in spec.cluster.scheduler.resources if word.startswith(option)]
    sys.stderr.write(f"the job leaves out {', '.join(hosts)}, where ranks failed or were slow\n")
    return [shlex.quote(spec.scheduler.without.format(hosts=",".join([*named, *hosts])))]


def status(folder: RunFolder) -> str:
    """Return the status of a run's job: the scheduler's answer, who trains in the folder, and the newest checkpoint.

    Raises:
        UserError: The folder is not that of a submitted run.
    """
    job, scheduler = _job_of(folder), SCHEDULERS[folder.cluster.scheduler.kind]
    said = _ask(scheduler.watch.format(job=job["job"]))
    answer = said.stdout.strip() or said.stderr.strip() or "nothing"
    checkpoints = folder.checkpoints.files()
    summary = folder.summary() if folder.has_summary else None
    ending = "ended" if folder.has_ended else "the last attempt"
    lines = [
        f"{folder.shown}: job {job['job']}, submitted {job['submitted']}",
        f"  owner of the folder: {folder.claims.holder() or 'none'}",
        f"  newest checkpoint: {f'step {step_of(checkpoints[0])}' if checkpoints else 'none'}",
        *(f"  an attempt {each.description}" for each in folder.attempts.read()),
        *([f"  {ending}: {summary.status}{f': {summary.failure}' if summary.failure else ''}"] if summary else []),
        f"  {scheduler.watch.split()[0]}:",
        *(f"    {line}" for line in answer.splitlines()),
    ]
    return "\n".join([*lines, ""])


def cancel(folder: RunFolder) -> str:
    """Ask the scheduler to end the job of a run, and return the command that asked.

    Raises:
        UserError: The folder is not that of a submitted run, or the scheduler refuses.
    """
    job, scheduler = _job_of(folder), SCHEDULERS[folder.cluster.scheduler.kind]
    if not scheduler.has_time_limit and folder.claims.holder() is None:
        # Without a scheduler, the job's number is a process ID, and another process may have got that ID since.
        raise UserError(f"{folder}: no run is active in it, so there is nothing to cancel")
    command = scheduler.cancel.format(job=job["job"])
    done = _ask(command)
    if done.returncode:
        raise UserError(f"{command}: {_message(done)}")
    return f"{folder.shown}: {command}\n"


def _job_of(folder: RunFolder) -> dict[str, Any]:
    """Return the record of a run's job."""
    job = found_object(folder / JOB_FILE)
    texts, runs = [job.get(key) for key in ("job", "script", "submitted")], job.get("runs")
    if not isinstance(runs, list) or not all(isinstance(each, str) for each in [*texts, *runs]):
        raise UserError(f"{folder}: no {JOB_FILE} in it; give the folder of a run that ./run.sh submit started")
    if folder.path.resolve() not in {Path(each).resolve() for each in runs}:
        raise UserError(
            f"{folder}: was copied or moved, and the job in its {JOB_FILE} is that of {runs[0]}; give that folder, or "
            "continue this run with ./run.sh train --resume"
        )
    return job


def _ask(command: str) -> subprocess.CompletedProcess[str]:
    sys.stdout.flush()
    words = ["bash", "-c", command]
    try:
        return subprocess.run(
            words, env=without_jobs(), capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        silence = f"no answer after {ANSWER_S:g} s; ask the scheduler whether it did what it was told, then try again"
        return subprocess.CompletedProcess(words, 1, "", silence)


def _message(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split())
