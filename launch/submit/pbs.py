"""PBS Professional and OpenPBS: qsub with one chunk a node."""

from __future__ import annotations

from launch.submit.jobspec import JobSpec, clock_time
from launch.submit.script import Dialect, render_script

__all__ = ["PBS", "render"]

_NAME_CHARACTERS = 15
"""What every PBS takes."""

PBS = Dialect(
    hosts="""awk '!seen[$1]++ { print $1 }' "$PBS_NODEFILE\"""",
    job_id='"$PBS_JOBID"',
    submit=("qsub",),
    watch="qstat -f {job}",
    cancel="qdel {job}",
    # qrerun is for operators only, so the job hands in its successor.
    again='qsub "$folder/job.sh"',
    output='exec >>"$folder/job.log" 2>&1',
)


def render(spec: JobSpec) -> str:
    """Write the script for qsub; resources that begin with a dash are options, the others join the chunk."""
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
        f"-o {spec.folder / 'job.out'}",
        "-j oe",
        f"-r {'y' if scheduler.requeue else 'n'}",
    ]
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-A {scheduler.account}")
    options += [word for word in spec.resources if word.startswith("-")]
    return render_script(spec, PBS, [f"#PBS {option}" for option in options])
