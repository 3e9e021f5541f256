"""No scheduler: a list of machines, on which horovodrun or mpirun start ranks over ssh from this one."""

from __future__ import annotations

import shlex

from launch.submit.jobspec import JobSpec
from launch.submit.script import Dialect, render_script

__all__ = ["hosts_scheduler", "render"]


def hosts_scheduler(hosts: tuple[str, ...]) -> Dialect:
    """Describe the machines as if a scheduler had granted them; the job's number is its process group."""
    return Dialect(
        hosts=f"printf '%s\\n' {shlex.join(hosts)}",
        job_id="$$",
        submit=("bash",),
        watch="ps -g {job} -o pid,etime,args",
        cancel="kill {job}",
    )


def render(spec: JobSpec) -> str:
    """Write the script; it has no limit, and so no notice."""
    return render_script(spec, hosts_scheduler(spec.hosts), [])
