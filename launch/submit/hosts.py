"""No scheduler: ``submit --hosts A,B``, where horovodrun or mpirun starts ranks over ssh from this machine."""

import shlex
from dataclasses import replace

from configs.programs import Program
from launch.submit.jobspec import JobSpec
from launch.submit.scheduler import JobScheduler
from launch.submit.script import render_script

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
    """Return the script for the machines of ``spec.hosts``; those beyond the number of nodes replace bad ones."""
    scheduler = replace(SCHEDULER, hosts=f"printf '%s\\n' {shlex.join(spec.hosts)}")
    if spec.cluster.container.runtime == "none":
        reach = f'"$python" -I -m {Program.REACH.value} "$folder" "${{hosts[@]}}" || exit 2'
        scheduler = replace(scheduler, reach=reach)
    if len(spec.hosts) > spec.cluster.num_nodes:
        left_out = f'"$python" -I -m {Program.JOB.value} left-out "${{runs[@]}}"'
        chosen = f'grep -vxFf <({left_out}) | head -n "$num_hosts"'
        hosts = f"\n  {scheduler.hosts} |\n    {chosen}\n"
        scheduler = replace(scheduler, hosts=hosts, move='exec bash "$0"', choices=" ".join(spec.hosts))
    return render_script(spec, scheduler, [])
