"""LSF: bsub, which reads the script from its standard input."""

from __future__ import annotations

from launch.submit.jobspec import JobSpec
from launch.submit.script import Dialect, render_script

__all__ = ["LSF", "render"]

_AGAIN = 76
"""Exit status by which LSF queues a job again (``-Q``)."""

LSF = Dialect(
    hosts="""awk '!seen[$1]++ { print $1 }' "$LSB_DJOB_HOSTFILE\"""",
    job_id='"$LSB_JOBID"',
    submit=("bsub", "<"),
    watch="bjobs -l {job}",
    cancel="bkill {job}",
    again=f"exit {_AGAIN}",
    output='exec >>"$folder/job.log" 2>&1',
)


def render(spec: JobSpec) -> str:
    """Write the script for bsub; resources that begin with a dash are options, the others go to ``-R``."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"-J {spec.name}",
        f"-n {cluster.world_size}",
        f'-R "span[ptile={cluster.ranks_per_node}]"',
        # In minutes, rounded up.
        f"-W {-(-spec.wall_time_s // 60)}",
        f"-o {spec.folder / 'job.out'}",
    ]
    if cluster.device == "gpu":
        options.append(f'-gpu "num={cluster.ranks_per_node}/host"')
    if scheduler.requeue:
        options += ["-r", f'-Q "{_AGAIN}"']
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f'-R "{word}"' for word in spec.resources]
    return render_script(spec, LSF, [f"#BSUB {option}" for option in options])
