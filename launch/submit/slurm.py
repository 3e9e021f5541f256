"""Slurm: sbatch."""

from dataclasses import replace

from launch.submit.jobspec import JobSpec, clock_time, directive_path
from launch.submit.scheduler import ON_HOST, JobScheduler
from launch.submit.script import render_script

SCHEDULER = JobScheduler(
    submit="sbatch --parsable",
    watch="squeue --jobs={job}",
    cancel="scancel {job}",
    interactive="salloc",
    hosts='scontrol show hostnames "$SLURM_JOB_NODELIST"',
    job_id='"$SLURM_JOB_ID"',
    job_variable="SLURM_JOB_ID",
    # Slurm ends the script soon after the requeue. If the script ended by itself first, the job would be complete.
    requeue='{ scontrol requeue "$SLURM_JOB_ID" && sleep 60; }',
    launchers=("srun", "mpirun", "local"),
    host_finders=("srun", "mpirun"),
    runtimes=(*ON_HOST, "enroot"),
    sends_notice=True,
    places_mpirun_ranks=True,
    without="--exclude={hosts}",
)

_MOVE = (
    # Slurm changes the nodes of a waiting job only, and sends SIGTERM to all processes of one that it queues again.
    """{{ (trap '' TERM && scontrol requeue "$SLURM_JOB_ID" && """
    """scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList={excluded}$without") && sleep 60; }}"""
)


def render(spec: JobSpec) -> str:
    """Return the script for sbatch."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"--job-name={spec.name}",
        f"--nodes={cluster.num_nodes}",
        f"--ntasks-per-node={cluster.ranks_per_node}",
        f"--time={clock_time(spec.wall_time_s)}",
        # sbatch replaces %j and the like; %% stands for a percent sign.
        f"--output={directive_path(spec.log).replace('%', '%%')}",
        "--open-mode=append",
        "--requeue" if scheduler.requeue else "--no-requeue",
    ]
    if scheduler.notice_s:
        options.append(f"--signal=B:USR1@{scheduler.notice_s}")
    if cluster.node.cores:
        options.append(f"--cpus-per-task={max(1, cluster.node.cores // cluster.ranks_per_node)}")
    if scheduler.queue:
        options.append(f"--partition={scheduler.queue}")
    if scheduler.account:
        options.append(f"--account={scheduler.account}")
    excluded = [word.partition("=")[2] for word in spec.resources if word.startswith("--exclude=")]
    scheduler_here = replace(
        SCHEDULER, leave_out="paste -sd,", move=_MOVE.format(excluded="".join(f"{word}," for word in excluded))
    )
    return render_script(spec, scheduler_here, [f"#SBATCH {option}" for option in [*options, *spec.resources]])
