"""LSF: bsub, which reads the script from its standard input."""

from launch.submit.jobspec import JobSpec, directive_path
from launch.submit.scheduler import JobScheduler
from launch.submit.script import render_script

_REQUEUE_STATUS = 76
"""Exit status that makes LSF queue the job again (``bsub -Q``)."""

SCHEDULER = JobScheduler(
    submit="bsub <",
    # Job <7> is submitted to queue <normal>.
    id_in_output=r"<(\d+)>",
    watch="bjobs -l {job}",
    cancel="bkill {job}",
    interactive="bsub -I",
    hosts="""awk '!seen[$1]++ { print $1 }' "$LSB_DJOB_HOSTFILE\"""",
    job_id='"$LSB_JOBID"',
    job_variable="LSB_JOBID",
    requeue=f"exit {_REQUEUE_STATUS}",
    redirection='exec >>"$folder/job.log" 2>&1',
    launchers=("mpirun", "horovodrun", "local"),
    host_finders=("mpirun", "horovodrun"),
)


def render(spec: JobSpec) -> str:
    """Return the script for bsub; resources that begin with a dash are options, the others are ``-R`` requests."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"-J {spec.name}",
        f"-n {cluster.world_size}",
        f'-R "span[ptile={cluster.ranks_per_node}]"',
        # -W takes minutes; the limit is rounded up.
        f"-W {-(-spec.wall_time_s // 60)}",
        # LSF replaces %J and %I.
        f"-o {directive_path(spec.folder / 'job.out', '%')}",
    ]
    if cluster.device == "gpu":
        options.append(f'-gpu "num={cluster.ranks_per_node}/host"')
    if scheduler.requeue:
        options += ["-r", f'-Q "{_REQUEUE_STATUS}"']
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f'-R "{word}"' for word in spec.resources]
    return render_script(spec, SCHEDULER, [f"#BSUB {option}" for option in options])
