"""A job: one or several runs on granted machines, before it is anybody's script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError, UserError
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.schema import Cluster
from launch.start.commands import RANK_SCRIPT

__all__ = ["IMAGE_PROGRAM", "JobSpec", "clock_time", "require_submittable"]

IMAGE_PROGRAM = Path("/opt/resnet-records")
"""Where this program lies in an image built by the Dockerfile."""

_GLOO_RANKS = 128
"""Gloo's rendezvous grows with the square of the ranks: minutes at this many, hours at a thousand (measured)."""


@dataclass(frozen=True)
class JobSpec:
    """Everything a job script says.

    Attributes:
        name: What the scheduler calls it.
        cluster: The place: nodes, ranks, launcher, scheduler, container.
        run_folders: A folder a run, in the order in which they run; the first also gets the job's output.
        program: This program's folder on the machine that runs the script.
        python: Its Python.
        variables: What every rank gets in its environment.
        hosts: The machines, where no scheduler grants them.
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
        """Where script and output of the job lie."""
        return self.run_folders[0]

    @property
    def log(self) -> Path:
        """What the job prints, over all its attempts."""
        return self.folder / "job.log"

    @property
    def resources(self) -> list[str]:
        """The cluster file's further requests, with their numbers filled in."""
        cluster = self.cluster
        numbers = {
            "num_nodes": cluster.num_nodes,
            "ranks_per_node": cluster.ranks_per_node,
            "world_size": cluster.world_size,
        }
        return [word.format(**numbers) for word in cluster.scheduler.resources]

    @property
    def wall_time_s(self) -> int:
        """Limit of the job."""
        assert self.cluster.scheduler.wall_time_s is not None, "checked before"
        return self.cluster.scheduler.wall_time_s

    @property
    def rank_command(self) -> list[str]:
        """What starts one rank, less its run folder; in the image where there is one."""
        container = self.cluster.container
        if container.runtime == "none":
            program, python, enter = self.program, self.python, []
        else:
            program, python = IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv/bin/python"
            enter = self._entering() if container.runtime in ("apptainer", "singularity") else []
        return [*enter, str(program / RANK_SCRIPT), *command_of(Program.RANK, python=python)]

    @property
    def mounts(self) -> list[str]:
        """What a container sees of the host: the cluster file's pairs; what they leave out under its own name."""
        given = self.cluster.container.mounts
        needed = dict.fromkeys([self.cluster.paths.data, self.cluster.paths.runs, str(self.folder.parent)])
        targets = [pair.split(":")[1] for pair in given]
        own = [path for path in needed if not any(Path(path).is_relative_to(target) for target in targets)]
        return [*given, *(f"{path}:{path}" for path in own)]

    def _entering(self) -> list[str]:
        gpu = ["--nv"] if self.cluster.device == "gpu" else []
        binds = [word for pair in self.mounts for word in ("--bind", pair)]
        return [self.cluster.container.runtime, "exec", *gpu, *binds, self.cluster.container.image]


def clock_time(seconds: int) -> str:
    """Write a duration as hours, minutes and seconds: 3600 is ``01:00:00``."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def require_submittable(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    """Refuse a cluster that no job script could be right for.

    Raises:
        UserError: No scheduler and no hosts, no wall time, a launcher or a container that does not go with them.
    """
    kind, launcher, gloo = cluster.scheduler.kind, cluster.launcher, _meets_over_gloo(cluster)
    if kind == "none" and not hosts:
        raise UserError(
            f"cluster {cluster.name} has no scheduler: set scheduler.kind in its file, give --hosts A,B, or train here "
            f"with ./run.sh train"
        )
    if hosts and (kind != "none" or len(hosts) != cluster.num_nodes):
        raise UserError(
            f"--hosts: got {len(hosts)} for num_nodes: {cluster.num_nodes} and scheduler {kind}, allowed: as many as "
            f"nodes, without a scheduler"
        )
    if kind != "none" and cluster.scheduler.wall_time_s is None:
        raise ConfigError("cluster.scheduler.wall_time_s", None, "seconds", "a job needs a limit: add it")
    allowed = _LAUNCHERS[kind]
    if launcher not in allowed:
        raise ConfigError("cluster.launcher", launcher, f"{' or '.join(allowed)} with scheduler {kind}")
    if launcher == "mpirun" and gloo:
        raise ConfigError("cluster.communication.backend", "gloo", "mpi or nccl under mpirun",
                          "or set launcher: horovodrun")  # fmt: skip
    if gloo and cluster.world_size > _GLOO_RANKS:
        raise ConfigError("cluster.communication.backend", "gloo", f"mpi or nccl for more than {_GLOO_RANKS} ranks",
                          "Gloo's rendezvous grows with their square; set launcher: srun or mpirun too")  # fmt: skip
    if cluster.container.runtime not in _RUNTIMES[kind]:
        raise ConfigError("cluster.container.runtime", cluster.container.runtime,
                          f"{' or '.join(_RUNTIMES[kind])} with scheduler {kind}")  # fmt: skip
    if cluster.container.runtime == "enroot" and launcher != "srun":
        raise ConfigError("cluster.launcher", launcher, "srun with container.runtime enroot, which pyxis adds to it")


def _meets_over_gloo(cluster: Cluster) -> bool:
    return rank_environment(cluster)["HOROVOD_CONTROLLER"] == "gloo"


_LAUNCHERS = {
    "none": ("horovodrun", "mpirun"),
    "slurm": ("srun", "mpirun", "local"),
    "gridengine": ("mpirun", "horovodrun", "local"),
    "pbs": ("mpirun", "horovodrun", "local"),
    "lsf": ("mpirun", "horovodrun", "local"),
    "kubernetes": ("mpirun",),
}
_ON_HOST = ("none", "apptainer", "singularity")
_RUNTIMES = {
    "none": _ON_HOST,
    "slurm": (*_ON_HOST, "enroot"),
    "gridengine": _ON_HOST,
    "pbs": _ON_HOST,
    "lsf": _ON_HOST,
    "kubernetes": ("docker",),
}
