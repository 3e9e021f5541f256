"""What every scheduler's module says of its scheduler, and how the program finds the module of a cluster file.

docs/extending.md shows how to add a scheduler.
"""

from dataclasses import dataclass
from typing import Protocol, cast

from configs.registry import SCHEDULERS, module_of
from launch.submit.jobspec import JobSpec

ON_HOST = ("none", "apptainer", "singularity")
"""Container runtimes that a rank on any host can enter by itself, without help from the scheduler."""


@dataclass(frozen=True, kw_only=True)
class JobScheduler:
    """Everything in which schedulers differ, apart from the directives at the head of a job script.

    Shell texts go into the job script as they are, so they are quoted here.

    Attributes:
        submit: Shell command that hands over a job script; the path of the script is appended. ``bsub <`` is for a
            command that reads the script from standard input.
        id_in_output: Regular expression whose first group is the job's id in the output of ``submit``.
        watch: Shell command that shows the state of job ``{job}``.
        cancel: Shell command that ends job ``{job}``.
        interactive: Shell command that opens a shell inside a job.
        hosts: Shell command that prints the granted hosts, one a line. The job script runs on the first of them.
        job_id: Shell word for the job's id, inside the job.
        job_variable: Environment variable that is set inside a job and nowhere else.
        requeue: Shell command that queues the job again after its ranks saved their state. If empty, the scheduler
            cannot do that, and ``scheduler.requeue`` has no effect on the script.
        move: Shell command that lets the job go on without the hosts ``$without``, which failed twice. If empty, a run
            is always started again on the same hosts.
        leave_out: Shell filter that makes ``$without`` of the hosts, one a line; empty if ``move`` does not need it.
        choices: Shell words with the hosts that a job without a scheduler chooses from; ``any`` if the scheduler does.
        redirection: Shell line that sends the script's output to ``job.log``, for a scheduler that shows the output
            of a job only after its end.
        reach: Shell command that ends the job if its hosts do not reach each other, with a line for each of them; empty
            where the scheduler vouches for them.
        without: Option of ``submit`` that keeps a job off the hosts ``{hosts}``, separated by commas; empty if it has
            none.
        script_name: File name of the job script in the run folder.
        launchers: Values of ``cluster.launcher`` that work inside a job.
        host_finders: Launchers that find the granted hosts by themselves.
        runtimes: Values of ``cluster.container.runtime`` that work inside a job.
        has_time_limit: Whether a job needs ``scheduler.wall_time_s``.
        sends_notice: Whether the scheduler sends SIGUSR1 to the script before the time limit. If False, a timer in
            the script does.
        places_mpirun_ranks: Whether mpirun needs no host file, because the scheduler's count of slots per host is
            always the number of ranks.
        runs_script_in_image: Whether the job script itself runs inside the container image.
    """

    submit: str
    watch: str
    cancel: str
    hosts: str
    job_id: str
    launchers: tuple[str, ...]
    id_in_output: str = r"([^;]+)"
    interactive: str = ""
    job_variable: str = ""
    requeue: str = ""
    move: str = ""
    leave_out: str = ""
    choices: str = "any"
    redirection: str = ""
    reach: str = ""
    without: str = ""
    script_name: str = "job.sh"
    host_finders: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ON_HOST
    has_time_limit: bool = True
    sends_notice: bool = False
    places_mpirun_ranks: bool = False
    runs_script_in_image: bool = False


class SchedulerModule(Protocol):
    """The two names that the module of each scheduler has."""

    SCHEDULER: JobScheduler

    def render(self, spec: JobSpec) -> str:
        """Return the text of the job script.

        Raises:
            UserError: The scheduler cannot run the job.
        """
        ...


def scheduler_of(kind: str) -> JobScheduler:
    """Return the description of the scheduler that a cluster file calls ``kind``."""
    return _module(kind).SCHEDULER


def all_schedulers() -> list[JobScheduler]:
    """Return the descriptions of all schedulers that a cluster file may name."""
    return [scheduler_of(kind) for kind in SCHEDULERS]


def render(spec: JobSpec) -> str:
    """Return the text of the job script, written for the scheduler of the job's cluster.

    Raises:
        UserError: The scheduler cannot run the job.
    """
    return _module(spec.cluster.scheduler.kind).render(spec)


def _module(kind: str) -> SchedulerModule:
    return cast(SchedulerModule, module_of(SCHEDULERS, kind))
