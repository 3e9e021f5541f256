"""Which clusters a job can be submitted to: launcher, container and communication have to suit the scheduler."""

import json
import subprocess
from collections.abc import Sequence

from configs.errors import ConfigError, UserError
from configs.programs import Program, command_of
from configs.rank_variables import meets_over_gloo
from configs.schema import Cluster
from launch.start.commands import require_launchable
from launch.submit.scheduler import JobScheduler, scheduler_of

_GLOO_RANKS = 128
"""Gloo's rendezvous grows with the square of the ranks: minutes at this many, hours at a thousand (measured)."""

_FAILURES = 2
"""After so many failures, a host is left out."""


def require_submittable(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    """Raise UserError if no job script could work on this cluster.

    Args:
        cluster: Where the job is to run.
        hosts: The machines that ``--hosts`` names, empty without it.

    Raises:
        UserError: There is neither a scheduler nor a list of hosts, the job has no time limit, or the scheduler does
            not go with the launcher, the container or the communication.
    """
    scheduler = scheduler_of(cluster.scheduler.kind)
    _require_machines(cluster, hosts)
    if scheduler.has_time_limit and cluster.scheduler.wall_time_s is None:
        raise ConfigError("cluster.scheduler.wall_time_s", None, "seconds", "a job needs a time limit: add the key")
    _require_launcher(cluster, scheduler)
    _require_container(cluster, scheduler)


def require_memory(recipe: str, place: str, overrides: Sequence[str], cluster: Cluster) -> None:
    """Raise UserError if a rank surely needs more memory than its GPU has, by the plan of the run.

    Args:
        recipe: The recipe's name or file.
        place: The cluster's name or file.
        overrides: The texts of ``--set``.
        cluster: The cluster with these overrides.
    """
    if cluster.device != "gpu" or cluster.node.gpu_memory_bytes is None:
        return
    sets = [word for override in overrides for word in ("--set", override)]
    command = command_of(Program.PLAN_VERB, recipe, "--cluster", place, "--json", *sets)
    plan = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if refusal := plan["memory"]["refusal"]:
        raise UserError(refusal)


def _require_machines(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    kind = cluster.scheduler.kind
    if kind == "none" and not hosts:
        raise UserError(
            f"cluster {cluster.name} has no scheduler: set scheduler.kind in its file, give --hosts A,B, or train here "
            f"with ./run.sh train"
        )
    spares = len(hosts) - cluster.num_nodes
    # A spare takes the place of a host that failed twice, so there is no use for it without restarts.
    if hosts and (kind != "none" or spares < 0 or (spares and cluster.scheduler.max_restarts < _FAILURES)):
        raise UserError(
            f"--hosts: got {len(hosts)} hosts for num_nodes: {cluster.num_nodes} and scheduler.kind: {kind}, allowed: "
            f"num_nodes hosts, with scheduler.kind: none; with scheduler.max_restarts from 2 on, more hosts as spares"
        )


def _require_launcher(cluster: Cluster, scheduler: JobScheduler) -> None:
    launcher, kind = cluster.launcher, cluster.scheduler.kind
    if launcher not in scheduler.launchers:
        raise ConfigError("cluster.launcher", launcher, f"{' or '.join(scheduler.launchers)} with scheduler {kind}")
    require_launchable(cluster)
    if cluster.communication.link_bytes_per_s is not None:
        allowed = "null for a job, because only ./run.sh train limits the loopback"
        raise ConfigError("cluster.communication.link_bytes_per_s", cluster.communication.link_bytes_per_s, allowed)
    if meets_over_gloo(cluster) and cluster.world_size > _GLOO_RANKS:
        raise ConfigError(
            "cluster.communication.backend",
            "gloo",
            f"mpi or nccl for more than {_GLOO_RANKS} ranks",
            "the time of Gloo's rendezvous grows with the square of the ranks; also set launcher: srun or mpirun",
        )


def _require_container(cluster: Cluster, scheduler: JobScheduler) -> None:
    runtime, kind = cluster.container.runtime, cluster.scheduler.kind
    if runtime not in scheduler.runtimes:
        allowed = f"{' or '.join(scheduler.runtimes)} with scheduler {kind}"
        raise ConfigError("cluster.container.runtime", runtime, allowed)
    if runtime == "enroot" and cluster.launcher != "srun":
        allowed = "srun with container.runtime: enroot, because pyxis adds containers to srun only"
        raise ConfigError("cluster.launcher", cluster.launcher, allowed)
