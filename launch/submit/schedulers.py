"""The schedulers: the commands of each, and what its jobs can do. What its jobs say is in ``templates``.

docs/extending.md shows how to add one. Slurm, for example, is a row of `SCHEDULERS` and ``slurm.sh.jinja``.
"""

from collections.abc import Mapping
from dataclasses import replace

from launch.submit.jobspec import ON_HOST, Scheduler

_KUBERNETES = Scheduler(
    submit="kubectl create -o name -f",
    watch="kubectl get {job}",
    cancel="kubectl delete {job}",
    script_name="job.yaml",
    launchers=("mpirun",),
    runtimes=("docker",),
    runs_script_in_image=True,
)

SCHEDULERS: Mapping[str, Scheduler] = {
    "none": Scheduler(
        submit="bash",
        watch="ps -g {job} -o pid,etime,args",
        cancel="kill {job}",
        launchers=("horovodrun", "mpirun"),
        has_time_limit=False,
    ),
    "slurm": Scheduler(
        submit="sbatch --parsable",
        watch="squeue --jobs={job}",
        cancel="scancel {job}",
        # Of a job that is cancelled, the last processes may be COMPLETING for a while.
        has="squeue --noheader --jobs={job} --states=PENDING,CONFIGURING,RUNNING,SUSPENDED | grep -q .",
        without="--exclude={hosts}",
        job_variable="SLURM_JOB_ID",
        launchers=("srun", "mpirun", "local"),
        host_finders=("srun", "mpirun"),
        runtimes=(*ON_HOST, "enroot"),
        sends_notice=True,
    ),
    "gridengine": Scheduler(
        submit="qsub -terse",
        watch="qstat -j {job}",
        has="qstat -j {job}",
        cancel="qdel {job}",
        job_variable="PE_HOSTFILE",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun",),
    ),
    "pbs": Scheduler(
        submit="qsub",
        watch="qstat -f {job}",
        has="qstat {job}",  # Of a job that has ended, it tells with -x only.
        cancel="qdel {job}",
        job_variable="PBS_NODEFILE",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun",),
    ),
    "lsf": Scheduler(
        submit="bsub <",
        # Job <7> is submitted to queue <normal>.
        id_in_output=r"<(\d+)>",
        watch="bjobs -l {job}",
        cancel="bkill {job}",
        job_variable="LSB_JOBID",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun", "horovodrun"),
    ),
    "kubernetes": _KUBERNETES,
    "trainjob": replace(_KUBERNETES, launchers=("torchrun", "mpirun")),
}
"""``scheduler.kind`` of a cluster file, see `configs.blocks.jobs.SchedulerKind` -> the scheduler.

``none`` stands for a list of machines that no scheduler grants (``./run.sh submit --hosts``).
"""
