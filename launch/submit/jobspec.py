"""A job, one or several runs on granted machines, as data from which the module of a scheduler writes a script."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import UserError
from configs.programs import Program, command_of
from configs.schema import Cluster
from launch.start.commands import RANK_SCRIPT

IMAGE_PROGRAM = Path("/opt/resnet-records")
"""The folder of this program in an image built by the Dockerfile."""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Everything that a job script says.

    Attributes:
        name: The job's name in the scheduler's queue.
        cluster: Nodes, ranks, launcher, scheduler and container.
        run_folders: One folder for each run, in the order in which the runs are trained. The first folder also holds
            the job script and the job's output.
        program: The folder of this program, on the machine that runs the script.
        python: The Python interpreter that the script calls.
        variables: Environment variables of every rank.
        hosts: The machines of a job that no scheduler grants machines to, else empty.
    """

    name: str
    cluster: Cluster
    run_folders: tuple[Path, ...]
    program: Path
    python: Path
    variables: Mapping[str, str]
    hosts: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the job script and of the job's output."""
        return self.run_folders[0]

    @property
    def size(self) -> str:
        """The numbers of ranks and nodes in words: ``2 ranks on 1 node``."""
        counts = {"rank": self.cluster.world_size, "node": self.cluster.num_nodes}
        return " on ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())

    @property
    def log(self) -> Path:
        """The file with the output of the job, over all its attempts."""
        return self.folder / "job.log"

    @property
    def resources(self) -> list[str]:
        """The values of ``scheduler.resources``, with the numbers of nodes and ranks filled in."""
        cluster = self.cluster
        numbers = {
            "num_nodes": cluster.num_nodes,
            "ranks_per_node": cluster.ranks_per_node,
            "world_size": cluster.world_size,
        }
        return [word.format(**numbers) for word in cluster.scheduler.resources]

    @property
    def wall_time_s(self) -> int:
        """The time limit of the job."""
        assert self.cluster.scheduler.wall_time_s is not None, "require_submittable has checked it"
        return self.cluster.scheduler.wall_time_s

    @property
    def rank_command(self) -> list[str]:
        """The command that starts one rank, inside the container image if there is one; the run folder follows it."""
        container = self.cluster.container
        if container.runtime == "none":
            program, python, enter = self.program, self.python, []
        else:
            program, python = IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv/bin/python"
            enter = self._container_command() if container.runtime in ("apptainer", "singularity") else []
        return [*enter, str(program / RANK_SCRIPT), *command_of(Program.RANK, python=python)]

    @property
    def mounts(self) -> list[str]:
        """The container's mounts: those of the cluster file, and each needed folder outside them under its own path."""
        given = self.cluster.container.mounts
        needed = dict.fromkeys([self.cluster.paths.data, self.cluster.paths.runs, str(self.folder.parent)])
        targets = [pair.split(":")[1] for pair in given]
        own = [path for path in needed if not any(Path(path).is_relative_to(target) for target in targets)]
        return [*given, *(f"{path}:{path}" for path in own)]

    def _container_command(self) -> list[str]:
        """Return the words by which apptainer or singularity runs a command in the image."""
        gpu = ["--nv"] if self.cluster.device == "gpu" else []
        binds = [word for pair in self.mounts for word in ("--bind", pair)]
        return [self.cluster.container.runtime, "exec", *gpu, *binds, self.cluster.container.image]


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
            f"{text!r}: the scheduler cannot be given a path with {' or '.join(map(repr, found))} in it; give another "
            "folder with --run-dir"
        )
    return f'"{text}"' if any(each in " #;&|()<>*?[]{}~" for each in text) else text
