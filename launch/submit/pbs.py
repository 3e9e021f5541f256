"""PBS Professional and OpenPBS: qsub, with one chunk a node."""

from launch.submit.jobspec import JobSpec, clock_time, directive_path
from launch.submit.scheduler import JobScheduler
from launch.submit.script import render_script

_NAME_CHARACTERS = 15
"""Longest job name that every PBS accepts."""

SCHEDULER = JobScheduler(
    submit="qsub",
    watch="qstat -f {job}",
    cancel="qdel {job}",
    interactive="qsub -I",
    hosts="""awk '!seen[$1]++ { print $1 }' "$PBS_NODEFILE\"""",
    job_id='"$PBS_JOBID"',
    job_variable="PBS_NODEFILE",
    # qrerun is for operators only, so the job submits its own script again.
    requeue='qsub "$folder/job.sh"',
    redirection='exec >>"$folder/job.log" 2>&1',
    launchers=("mpirun", "horovodrun", "local"),
    host_finders=("mpirun",),
)


def render(spec: JobSpec) -> str:
    """Return the script for qsub; resources that begin with a dash are options, the others go into the chunk."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    chunk = [str(cluster.num_nodes), f"mpiprocs={cluster.ranks_per_node}"]
    if cluster.node.cores:
        chunk.append(f"ncpus={cluster.node.cores}")
    if cluster.device == "gpu":
        chunk.append(f"ngpus={cluster.ranks_per_node}")
    chunk += [word for word in spec.resources if not word.startswith("-")]
    options = [
        f"-N {spec.name[:_NAME_CHARACTERS]}",
        f"-l select={':'.join(chunk)}",
        f"-l walltime={clock_time(spec.wall_time_s)}",
        # PBS takes HOST:PATH, and ^ stands before a name that PBS replaces.
        f"-o {directive_path(spec.folder / 'job.out', ':^')}",
        "-j oe",
        f"-r {'y' if scheduler.requeue else 'n'}",
    ]
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-A {scheduler.account}")
    own = [word for word in spec.resources if word.startswith("-")]
    if not any("place=" in word for word in own):
        # Without this request, PBS may put two chunks on one host, and the script refuses that.
        own.insert(0, "-l place=scatter")
    options += own
    return render_script(spec, SCHEDULER, [f"#PBS {option}" for option in options])
