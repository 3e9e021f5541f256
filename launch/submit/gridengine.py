"""Grid Engine: qsub, open (``-pe mpi 2``) or as ABCI has it (``rt_F=512``).

The notice before the limit is the script's own: Grid Engine's ``s_rt`` sends SIGUSR1 to every process of the job's
group, which ends whatever has no handler for it, horovodrun first.
"""

from __future__ import annotations

from launch.submit.jobspec import JobSpec, clock_time
from launch.submit.script import Dialect, render_script

__all__ = ["GRID_ENGINE", "render"]

GRID_ENGINE = Dialect(
    # ABCI's sets the first, the open one only the second; both name a host a line first.
    hosts="""awk '!seen[$1]++ { print $1 }' "${SGE_JOB_HOSTLIST:-${PE_HOSTFILE:?the job has no -pe}}\"""",
    job_id='"$JOB_ID"',
    submit=("qsub", "-terse"),
    watch="qstat -j {job}",
    cancel="qdel {job}",
    again="exit 99",
)


def render(spec: JobSpec) -> str:
    """Write the script for qsub; resources that begin with a dash are options, the others go to ``-l``."""
    scheduler = spec.cluster.scheduler
    options = [
        "-S /bin/bash",
        f"-N {spec.name}" if spec.name[0].isalpha() else f"-N run-{spec.name}",
        f"-o {spec.log}",
        "-j y",
        f"-l h_rt={clock_time(spec.wall_time_s)}",
        f"-r {'y' if scheduler.requeue else 'n'}",
    ]
    if scheduler.queue:
        options.append(f"-q {scheduler.queue}")
    if scheduler.account:
        options.append(f"-P {scheduler.account}")
    options += [word if word.startswith("-") else f"-l {word}" for word in spec.resources]
    return render_script(spec, GRID_ENGINE, [f"#$ {option}" for option in options])
