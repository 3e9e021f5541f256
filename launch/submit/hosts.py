"""No scheduler: ``submit --hosts A,B``, where horovodrun or mpirun starts ranks over ssh from this machine."""

from __future__ import annotations

import shlex
from dataclasses import replace

from launch.submit.jobspec import JobSpec
from launch.submit.scheduler import JobScheduler
from launch.submit.script import render_script

__all__ = ["SCHEDULER", "render"]

SCHEDULER = JobScheduler(
    submit="bash",
    # The id of the job is the process group of the script.
    watch="ps -g {job} -o pid,etime,args",
    cancel="kill {job}",
    # `render` puts the names of the machines here.
    hosts="",
    job_id="$$",
    launchers=("horovodrun", "mpirun"),
    has_time_limit=False,
)


def render(spec: JobSpec) -> str:
    """Return the script for the machines of ``spec.hosts``."""
    return render_script(spec, replace(SCHEDULER, hosts=f"printf '%s\\n' {shlex.join(spec.hosts)}"), [])
