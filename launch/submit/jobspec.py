"""A job, one or several runs on granted machines, and a scheduler that runs jobs, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.arguments import counted
from configs.programs import Program, command_of
from configs.schema import Cluster
from launch.start.commands import RANK_SCRIPT

IMAGE_PROGRAM = Path("/opt/resnet-records")
"""The folder of this program in an image built by the Dockerfile."""

ON_HOST = ("none", "apptainer", "singularity", "charliecloud")
"""Container runtimes that a rank on any host can enter by itself, without help from the scheduler."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A scheduler as seen from outside its jobs: its commands, and what its jobs can do.

    Shell texts are used as they are, so they are quoted here.

    Attributes:
        submit: Shell command that hands over a job script; the path of the script is appended. ``bsub <`` is for a
            command that reads the script from standard input.
        id_in_output: Regular expression whose first group is the job's id in the output of ``submit``; by default it is
            the last line, above which a site's wrapper may greet the user.
        watch: Shell command that shows the state of job ``{job}``.
        cancel: Shell command that ends job ``{job}``.
        has: Shell command that succeeds while job ``{job}`` waits or runs; empty if there is none.
        without: Option of ``submit`` that keeps a job off the hosts ``{hosts}``, separated by commas; empty if it has
            none.
        job_variable: Environment variable that is set inside a job and nowhere else.
        script_name: File name of the job script in the run folder; ``templates`` has a file with its ending.
        launchers: Values of ``cluster.launcher`` that work inside a job.
        host_finders: Launchers that find the granted hosts by themselves.
        runtimes: Values of ``cluster.container.runtime`` that work inside a job.
        has_time_limit: Whether a job needs ``scheduler.wall_time_s``.
        sends_notice: Whether the scheduler sends SIGUSR1 to the script before the time limit. If False, a timer in the
            script does.
        runs_script_in_image: Whether the job script itself runs inside the container image.
    """

    submit: str
    watch: str
    cancel: str
    launchers: tuple[str, ...]
    id_in_output: str = r"(?m)^(\w[^\s;]*)(?:;\S*)?\Z"
    has: str = ""
    without: str = ""
    job_variable: str = ""
    script_name: str = "job.sh"
    host_finders: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ON_HOST
    has_time_limit: bool = True
    sends_notice: bool = False
    runs_script_in_image: bool = False


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Everything that a job script says.

    Attributes:
        name: The job's name in the scheduler's queue.
        scheduler: The scheduler that runs the job.
        cluster: Nodes, ranks, launcher, scheduler and container.
        run_folders: One folder for each run, in the order in which the runs are trained. The first folder also holds
            the job script and the job's output.
        program: The folder of this program, on the machine that runs the script.
        python: The Python interpreter that the script calls.
        variables: Environment variables of every rank.
        hosts: The machines of a job that no scheduler grants machines to, else empty.
        accept_minutes: Time for an acceptance of the nodes, which the job makes in place of a run. If None, it trains.
    """

    name: str
    scheduler: Scheduler
    cluster: Cluster
    run_folders: tuple[Path, ...]
    program: Path
    python: Path
    variables: Mapping[str, str]
    hosts: tuple[str, ...] = ()
    accept_minutes: float | None = None

    @property
    def folder(self) -> Path:
        """The folder of the job script and of the job's output."""
        return self.run_folders[0]

    @property
    def script(self) -> Path:
        """The file of the job script."""
        return self.folder / self.scheduler.script_name

    @property
    def log(self) -> Path:
        """The file with the output of the job, over all its attempts."""
        return self.folder / "job.log"

    @property
    def spares(self) -> int:
        """The number of nodes beyond those that the run needs."""
        return len(self.hosts) - self.cluster.num_nodes if self.hosts else self.cluster.scheduler.spare_nodes

    @property
    def num_nodes(self) -> int:
        """The number of nodes that the job asks for: those of the run, and the spare ones."""
        return self.cluster.num_nodes + self.spares

    @property
    def starts_ranks(self) -> bool:
        """Whether a program in the job script, as the doctor, can start ranks by itself."""
        is_in_place = self.cluster.container.runtime == "none" or self.scheduler.runs_script_in_image
        return is_in_place and self.cluster.launcher != "torchrun"

    @property
    def size(self) -> str:
        """The numbers of ranks and nodes in words: ``2 ranks on 1 node``."""
        words = f"{counted(self.cluster.world_size, 'rank')} on {counted(self.cluster.num_nodes, 'node')}"
        return words + (f" (+{self.spares} spare)" if self.spares else "")

    @property
    def resources(self) -> list[str]:
        """The values of ``scheduler.resources``, with the numbers of nodes and ranks filled in, also of spare nodes."""
        per_node = self.cluster.ranks_per_node
        numbers = {
            "num_nodes": self.num_nodes,
            "ranks_per_node": per_node,
            "world_size": self.num_nodes * per_node,
        }
        return [word.format(**numbers) for word in self.cluster.scheduler.resources]

    def asks_for(self, *options: str) -> bool:
        """Return whether ``scheduler.resources`` has an option that begins with one of ``options``."""
        return any(word.startswith(options) for word in self.resources)

    @property
    def requests(self) -> list[str]:
        """The values of ``scheduler.resources`` that Grid Engine takes for requests, without their ``-l``."""
        return [word.removeprefix("-l ") for word in self.resources if word[:1] != "-" or word.startswith("-l ")]

    @property
    def cores_per_rank(self) -> int:
        """A rank's share of the cores of a node, at least one; 0 if the cluster file does not give the cores."""
        cores = self.cluster.node.cores
        return max(1, cores // self.cluster.ranks_per_node) if cores else 0

    @property
    def wall_time_s(self) -> int:
        """The time limit of the job."""
        assert self.cluster.scheduler.wall_time_s is not None, "require_submittable has checked it"
        return self.cluster.scheduler.wall_time_s

    @property
    def rank_command(self) -> list[str]:
        """The command that starts one rank, inside the container image if there is one; the run folder follows it."""
        runtime = self.cluster.container.runtime
        if runtime == "none":
            program, python, enter = self.program, self.python, []
        else:
            program, python = IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv/bin/python"
            enter = self._container_command() if runtime in ON_HOST else []
        return [*enter, str(program / RANK_SCRIPT), *command_of(Program.RANK, python=python)]

    @property
    def mounts(self) -> list[str]:
        """The container's mounts: those of the cluster file, and each needed folder outside them under its own path."""
        given = self.cluster.container.mounts
        needed = dict.fromkeys([self.cluster.paths.data, str(self.folder.parent)])
        targets = [pair.split(":")[1] for pair in given]
        own = [path for path in needed if not any(Path(path).is_relative_to(target) for target in targets)]
        return [*given, *(f"{path}:{path}" for path in own)]

    def _container_command(self) -> list[str]:
        """Return the words by which apptainer, singularity or charliecloud runs a command in the image."""
        container = self.cluster.container
        binds = [word for pair in self.mounts for word in ("--bind", pair)]
        if container.runtime == "charliecloud":
            # ch-run makes missing targets of mounts only with --write, which the folder of an image allows.
            write = [] if container.image.endswith(".sqfs") else ["--write"]
            return ["ch-run", *write, *binds, container.image, "--"]
        gpu = ["--nv"] if self.cluster.device == "gpu" else []
        return [container.runtime, "exec", *gpu, *binds, container.image]
