"""The schedulers: how a job asks each of them for machines and time, and what its jobs do in their own way.

docs/extending.md shows how to add one. Slurm, for example, is the function `_slurm` and its row in `SCHEDULERS`.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from configs.errors import UserError
from configs.programs import Program
from launch.submit import kubernetes, train_job
from launch.submit.jobspec import ON_HOST, JobSpec, Scheduler
from launch.submit.script import BAD_HOSTS, InsideJob, job_script

_LSF_REQUEUE_STATUS = 76
"""Exit status that makes LSF queue the job again (``bsub -Q``)."""

_PBS_NAME_CHARACTERS = 15
"""Longest job name that every PBS accepts."""


_SLURM_GPU_OPTIONS = ("--gpus", "-G", "--gres", "--tres-per-")
"""Options by which a cluster file asks for GPUs itself; ``--gres=none`` asks for none, where Slurm knows no GPUs."""


def _slurm(spec: JobSpec) -> str:
    """Return the script for sbatch."""
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"--job-name={spec.name}",
        f"--nodes={spec.num_nodes}",
        f"--ntasks-per-node={cluster.ranks_per_node}",
        f"--time={clock_time(spec.wall_time_s)}",
        # sbatch replaces %j and the like; %% stands for a percent sign.
        f"--output={directive_path(spec.log).replace('%', '%%')}",
        "--open-mode=append",
        "--requeue" if scheduler.requeue else "--no-requeue",
        # A job with spare nodes outlives the loss of a node.
        *(["--no-kill"] if spec.spares else []),
    ]
    if scheduler.notice_s:
        options.append(f"--signal=B:USR1@{scheduler.notice_s}")
    if cluster.node.cores:
        options.append(f"--cpus-per-task={max(1, cluster.node.cores // cluster.ranks_per_node)}")
    if cluster.device == "gpu" and not any(word.startswith(_SLURM_GPU_OPTIONS) for word in spec.resources):
        options.append(f"--gpus-per-node={cluster.ranks_per_node}")
    if scheduler.queue:
        options.append(f"--partition={scheduler.queue}")
    if scheduler.account:
        options.append(f"--account={scheduler.account}")
    excluded = "".join(f"{word.partition('=')[2]}," for word in spec.resources if word.startswith("--exclude="))
    inside = InsideJob(
        hosts='scontrol show hostnames "$SLURM_JOB_NODELIST"',
        job_id='"$SLURM_JOB_ID"',
        # Slurm ends the script soon after the requeue. If the script ended by itself first, the job would be complete.
        requeue='{ scontrol requeue "$SLURM_JOB_ID" && sleep 60; }',
        # Slurm changes the nodes of a waiting job only, and sends SIGTERM to all processes of one that it queues again.
        move=(
            f"without=$({BAD_HOSTS} | paste -sd,)",
            """{ (trap '' TERM && scontrol requeue "$SLURM_JOB_ID" && """
            f"""scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList={excluded}$without") && sleep 60; }}""",
        ),
        topology="$(scontrol show topology 2>/dev/null || true)",
        sends_notice=True,
        places_mpirun_ranks=not spec.spares,
    )
    return job_script(spec, [f"#SBATCH {option}" for option in [*options, *spec.resources]], inside)


def _gridengine(spec: JobSpec) -> str:
    """Return the script for Grid Engine's qsub, of the open version (``-pe mpi 2``) or of ABCI (``rt_F=512``).

    Resources that begin with a dash are options, the others are ``-l`` requests. The script announces the time limit
    with a timer of its own. Grid Engine's ``s_rt`` would send SIGUSR1 to every process of the job's process group,
    which kills every process without a handler for SIGUSR1, first of all horovodrun.
    """
    scheduler, limit = spec.cluster.scheduler, f"h_rt={clock_time(spec.wall_time_s)}"
    options = [
        "-S /bin/bash",
        f"-N {spec.name}" if spec.name[0].isalpha() else f"-N run-{spec.name}",
        # Grid Engine takes HOST:PATH,PATH.
        f"-o {directive_path(spec.log, ':,')}",
        "-j y",
        f"-l {limit}",
        f"-r {'y' if scheduler.requeue else 'n'}",
    ]
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f"-l {word}" for word in spec.resources]
    requests = [word.removeprefix("-l ") for word in spec.resources if word.startswith("-l ") or word[:1] != "-"]
    inside = InsideJob(
        # ABCI sets SGE_JOB_HOSTLIST, the open version sets only PE_HOSTFILE. Both begin each line with a host.
        hosts="""awk '!seen[$1]++ { print $1 }' "${SGE_JOB_HOSTLIST:-${PE_HOSTFILE:?the job has no -pe}}\"""",
        job_id='"$JOB_ID"',
        requeue="exit 99",
        # qalter replaces the whole list of requests.
        move=(
            f"without=$({BAD_HOSTS} | sed 's/^/!/' | paste -sd '&')",
            f'qalter -l {shlex.quote(",".join([limit, *requests]))},"hostname=$without" "$JOB_ID" && exit 99',
        ),
    )
    return job_script(spec, [f"#$ {option}" for option in options], inside)


def _pbs(spec: JobSpec) -> str:
    """Return the script for qsub of PBS Professional or OpenPBS, with one chunk a node.

    Resources that begin with a dash are options, the others go into the chunk.
    """
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    chunk = [str(spec.num_nodes), f"mpiprocs={cluster.ranks_per_node}"]
    if cluster.node.cores:
        chunk.append(f"ncpus={cluster.node.cores}")
    if cluster.device == "gpu":
        chunk.append(f"ngpus={cluster.ranks_per_node}")
    chunk += [word for word in spec.resources if not word.startswith("-")]
    options = [
        f"-N {spec.name[:_PBS_NAME_CHARACTERS]}",
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
    inside = InsideJob(
        hosts="""awk '!seen[$1]++ { print $1 }' "$PBS_NODEFILE\"""",
        job_id='"$PBS_JOBID"',
        # qrerun is for operators only, so the job submits its own script again.
        requeue='qsub "$folder/job.sh"',
        redirection='exec >>"$folder/job.log" 2>&1',
    )
    return job_script(spec, [f"#PBS {option}" for option in [*options, *own]], inside)


def _lsf(spec: JobSpec) -> str:
    """Return the script for bsub, which reads the script from its standard input.

    Resources that begin with a dash are options, the others are ``-R`` requests.
    """
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    options = [
        f"-J {spec.name}",
        f"-n {spec.num_nodes * cluster.ranks_per_node}",
        f'-R "span[ptile={cluster.ranks_per_node}]"',
        # -W takes minutes; the limit is rounded up.
        f"-W {-(-spec.wall_time_s // 60)}",
        # LSF replaces %J and %I.
        f"-o {directive_path(spec.folder / 'job.out', '%')}",
    ]
    if cluster.device == "gpu":
        options.append(f'-gpu "num={cluster.ranks_per_node}/host"')
    if scheduler.requeue:
        options += ["-r", f'-Q "{_LSF_REQUEUE_STATUS}"']
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f'-R "{word}"' for word in spec.resources]
    inside = InsideJob(
        hosts="""awk '!seen[$1]++ { print $1 }' "$LSB_DJOB_HOSTFILE\"""",
        job_id='"$LSB_JOBID"',
        requeue=f"exit {_LSF_REQUEUE_STATUS}",
        redirection='exec >>"$folder/job.log" 2>&1',
    )
    return job_script(spec, [f"#BSUB {option}" for option in options], inside)


def _hosts(spec: JobSpec) -> str:
    """Return the script for ``submit --hosts A,B``, by which horovodrun or mpirun starts ranks over ssh from here.

    The hosts beyond the number of nodes are spares.
    """
    # In a container, the ranks' own network is not this script's.
    is_reachable = spec.cluster.container.runtime == "none"
    program = f'"$python" -I -m {Program.REACH.value} "$folder"' if is_reachable else "printf '%s\\n'"
    inside = InsideJob(
        hosts=f"{program} {shlex.join(spec.hosts)}",
        # The id of the job is the process group of the script.
        job_id="$$",
    )
    return job_script(spec, [], inside)


SCHEDULERS: Mapping[str, Scheduler] = {
    "none": Scheduler(
        render=_hosts,
        submit="bash",
        watch="ps -g {job} -o pid,etime,args",
        cancel="kill {job}",
        launchers=("horovodrun", "mpirun"),
        has_time_limit=False,
    ),
    "slurm": Scheduler(
        render=_slurm,
        submit="sbatch --parsable",
        watch="squeue --jobs={job}",
        cancel="scancel {job}",
        interactive="salloc",
        without="--exclude={hosts}",
        job_variable="SLURM_JOB_ID",
        launchers=("srun", "mpirun", "local"),
        host_finders=("srun", "mpirun"),
        runtimes=(*ON_HOST, "enroot"),
    ),
    "gridengine": Scheduler(
        render=_gridengine,
        submit="qsub -terse",
        watch="qstat -j {job}",
        cancel="qdel {job}",
        interactive="qrsh",
        job_variable="PE_HOSTFILE",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun",),
    ),
    "pbs": Scheduler(
        render=_pbs,
        submit="qsub",
        watch="qstat -f {job}",
        cancel="qdel {job}",
        interactive="qsub -I",
        job_variable="PBS_NODEFILE",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun",),
    ),
    "lsf": Scheduler(
        render=_lsf,
        submit="bsub <",
        # Job <7> is submitted to queue <normal>.
        id_in_output=r"<(\d+)>",
        watch="bjobs -l {job}",
        cancel="bkill {job}",
        interactive="bsub -I",
        job_variable="LSB_JOBID",
        launchers=("mpirun", "horovodrun", "local"),
        host_finders=("mpirun", "horovodrun"),
    ),
    "kubernetes": Scheduler(
        render=kubernetes.mpi_job,
        submit="kubectl create -o name -f",
        watch="kubectl get {job}",
        cancel="kubectl delete {job}",
        script_name="job.yaml",
        launchers=("mpirun",),
        runtimes=("docker",),
        runs_script_in_image=True,
    ),
    "trainjob": Scheduler(
        render=train_job.train_job,
        submit="kubectl create -o name -f",
        watch="kubectl get {job}",
        cancel="kubectl delete {job}",
        script_name="job.yaml",
        launchers=("torchrun", "mpirun"),
        runtimes=("docker",),
        runs_script_in_image=True,
    ),
}
"""``scheduler.kind`` of a cluster file, see `configs.blocks.jobs.SchedulerKind` -> the scheduler.

``none`` stands for a list of machines that no scheduler grants (``./run.sh submit --hosts``).
"""


def clock_time(seconds: int) -> str:
    """Return a duration as hours, minutes and seconds: 3600 is ``01:00:00``."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def directive_path(path: Path, special: str = "") -> str:
    """Return a path as a word of a scheduler's directive, in double quotes if the path has a space in it.

    Args:
        path: A file in the run folder.
        special: Characters that the scheduler replaces or splits paths at, and offers no way to quote.

    Raises:
        UserError: The path has a character that no quotes protect.
    """
    text = str(path)
    found = sorted({each for each in text if each in f"\"'\\$`{special}" or not each.isprintable()})
    if found:
        raise UserError(
            f"{text!r}: the scheduler does not accept a path with {' or '.join(map(repr, found))} in it; give another "
            "folder with --run-dir"
        )
    return f'"{text}"' if any(each in " #;&|()<>*?[]{}~" for each in text) else text
