"""Grid Engine: qsub, in the open version (``-pe mpi 2``) and in the version of ABCI (``rt_F=512``).

The script announces the time limit with a timer of its own. Grid Engine's ``s_rt`` would send SIGUSR1 to every process
of the job's process group, which kills every process without a handler for SIGUSR1, first of all horovodrun.
"""

import shlex
from dataclasses import replace

from launch.submit.jobspec import JobSpec, clock_time, directive_path
from launch.submit.scheduler import JobScheduler
from launch.submit.script import render_script

SCHEDULER = JobScheduler(
    submit="qsub -terse",
    watch="qstat -j {job}",
    cancel="qdel {job}",
    interactive="qrsh",
    # ABCI sets SGE_JOB_HOSTLIST, the open version sets only PE_HOSTFILE. Both begin each line with a host.
    hosts="""awk '!seen[$1]++ { print $1 }' "${SGE_JOB_HOSTLIST:-${PE_HOSTFILE:?the job has no -pe}}\"""",
    job_id='"$JOB_ID"',
    job_variable="PE_HOSTFILE",
    requeue="exit 99",
    launchers=("mpirun", "horovodrun", "local"),
    host_finders=("mpirun",),
)


def render(spec: JobSpec) -> str:
    """Return the script for qsub; resources that begin with a dash are options, the others are ``-l`` requests."""
    scheduler = spec.cluster.scheduler
    options = [
        "-S /bin/bash",
        f"-N {spec.name}" if spec.name[0].isalpha() else f"-N run-{spec.name}",
        # Grid Engine takes HOST:PATH,PATH.
        f"-o {directive_path(spec.log, ':,')}",
        "-j y",
        f"-l h_rt={clock_time(spec.wall_time_s)}",
        f"-r {'y' if scheduler.requeue else 'n'}",
    ]
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f"-l {word}" for word in spec.resources]
    # qalter replaces the whole list of requests.
    requests = [f"h_rt={clock_time(spec.wall_time_s)}"]
    requests += [word.removeprefix("-l ") for word in spec.resources if word.startswith("-l ") or word[:1] != "-"]
    move = f'qalter -l {shlex.quote(",".join(requests))},"hostname=$without" "$JOB_ID" && exit 99'
    scheduler_here = replace(SCHEDULER, leave_out="sed 's/^/!/' | paste -sd '&'", move=move)
    return render_script(spec, scheduler_here, [f"#$ {option}" for option in options])
