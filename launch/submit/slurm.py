"""Slurm: sbatch. It signals the script before the limit, queues jobs again, and gives hosts as a compressed list."""

from __future__ import annotations

from launch.submit.jobspec import JobSpec, clock_time
from launch.submit.script import Dialect, render_script

__all__ = ["SLURM", "render"]

SLURM = Dialect(
    hosts='scontrol show hostnames "$SLURM_JOB_NODELIST"',
    job_id='"$SLURM_JOB_ID"',
    submit=("sbatch", "--parsable"),
    watch="squeue --jobs={job}",
    cancel="scancel {job}",
    # Slurm ends the script soon after; had it ended by itself before, the job would be over instead.
    again='{ scontrol requeue "$SLURM_JOB_ID" && sleep 60; }',
    notifies=True,
)


def render(spec: JobSpec) -> str:
    """Write the script for sbatch."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"--job-name={spec.name}",
        f"--nodes={cluster.num_nodes}",
        f"--ntasks-per-node={cluster.ranks_per_node}",
        f"--time={clock_time(spec.wall_time_s)}",
        f"--output={spec.log}",
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
    return render_script(spec, SLURM, [f"#SBATCH {option}" for option in [*options, *spec.resources]])
