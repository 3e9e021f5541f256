"""Submitted jobs: records which job trains in a run folder, shows its status, cancels it, and resumes it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import load_run
from launch.resume import UNFINISHED_MARK, require_unfinished
from launch.run import short_path
from launch.submit.scheduler import JobScheduler, scheduler_of
from logs.attempts import read_attempts
from logs.checkpoints import list_checkpoints, step_of
from logs.claims import holder
from logs.disk import write_json
from logs.folder import CONFIG_FILE, SUMMARY_FILE, read_summary

JOB_FILE = "job.json"


def record_job(folders: Sequence[Path], job_id: str, script: Path) -> None:
    """Write into each run folder of a job its id and its script."""
    submitted = datetime.now().astimezone().isoformat(timespec="seconds")
    for folder in folders:
        row = {"job": job_id, "script": str(script), "runs": [str(each) for each in folders], "submitted": submitted}
        write_json(folder / JOB_FILE, row)


def status(folder: Path) -> str:
    """Return the status of a run's job: the scheduler's answer, who trains in the folder, and the newest checkpoint.

    Raises:
        UserError: The folder is not that of a submitted run.
    """
    job, scheduler = _job(folder)
    said = _ask(scheduler.watch.format(job=job["job"]))
    answer = said.stdout.strip() or said.stderr.strip() or "nothing"
    checkpoints, summary = list_checkpoints(folder), None
    if (folder / SUMMARY_FILE).is_file() and not (folder / UNFINISHED_MARK).is_file():
        summary = read_summary(folder)
    lines = [
        f"{short_path(folder)}: job {job['job']}, submitted {job['submitted']}",
        f"  trains now: {holder(folder) or 'nobody'}",
        f"  newest checkpoint: {f'step {step_of(checkpoints[0])}' if checkpoints else 'none'}",
        *(f"  an attempt {each.words}" for each in read_attempts(folder)),
        *([f"  ended: {summary.status}{f': {summary.failure}' if summary.failure else ''}"] if summary else []),
        f"  {scheduler.watch.split()[0]}:",
        *(f"    {line}" for line in answer.splitlines()),
    ]
    return "\n".join([*lines, ""])


def cancel(folder: Path) -> str:
    """Ask the scheduler to end the job of a run, and return the command that asked.

    Raises:
        UserError: The folder is not that of a submitted run, or the scheduler refuses.
    """
    job, scheduler = _job(folder)
    if not scheduler.job_variable and not scheduler.runs_script_in_image and holder(folder) is None:
        # Without a scheduler, the job's number is a process ID, and another process may have got that ID since.
        raise UserError(f"{folder}: no run is going on in it, so there is nothing to cancel")
    command = scheduler.cancel.format(job=job["job"])
    done = _ask(command)
    if done.returncode:
        raise UserError(f"{command}: {' '.join((done.stderr or done.stdout).split())}")
    return f"{short_path(folder)}: {command}\n"


def script_to_resume(folder: Path) -> tuple[Path, list[Path]]:
    """Prepare an unfinished run for another submission; return the job script and all run folders of the job.

    Raises:
        UserError: The folder is not that of a submitted run, the run has ended, or another process trains in it.
    """
    job, _ = _job(folder)
    script, runs = Path(job["script"]), [Path(each) for each in job["runs"]]
    if not script.is_file():
        raise UserError(f"{script}: the job script is missing; resume with ./run.sh train --resume {folder} in a job")
    if words := holder(folder):
        raise UserError(f"{folder}: a run is going on in it: {words}; wait for its end, or cancel it with --cancel")
    require_unfinished(folder)
    (folder / UNFINISHED_MARK).touch()
    return script, runs


def _job(folder: Path) -> tuple[dict[str, Any], JobScheduler]:
    """Return the record of a run's job and its scheduler."""
    try:
        job = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(
            f"{folder}: no {JOB_FILE} in it; give the folder of a run that ./run.sh submit started"
        ) from None
    _, cluster = load_run(folder / CONFIG_FILE)
    return job, scheduler_of(cluster.scheduler.kind)


def _ask(command: str) -> subprocess.CompletedProcess[str]:
    sys.stdout.flush()
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
