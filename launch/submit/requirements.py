"""Which clusters a job can be submitted to: launcher, container and communication have to suit the scheduler."""

from configs.errors import ConfigError, UserError
from configs.rank_variables import connecting_library
from launch.start.commands import require_launchable
from launch.submit.jobspec import JobSpec

_GLOO_RANKS = 128
"""Gloo's rendezvous grows with the square of the ranks: minutes at this many, hours at a thousand (measured)."""


def require_submittable(spec: JobSpec) -> None:
    """Raise UserError if no job script could work on the job's cluster.

    Raises:
        UserError: There is neither a scheduler nor a list of hosts, the job has no time limit, the scheduler does not
            go with the launcher, the container or the communication, the job would be granted no GPU, or its pods would
            not see a folder that the run needs.
    """
    _require_machines(spec)
    _require_possible_job(spec)
    require_launchable(spec.cluster, spec.scheduler.launchers)
    if spec.scheduler.runs_script_in_image:
        _require_mounts(spec)
    if spec.cluster.scheduler.kind == "trainjob":
        _require_train_job(spec)
    if spec.accept_minutes is not None and not (spec.starts_ranks and len(spec.run_folders) == 1):
        raise UserError(
            f"--accept: got launcher: {spec.cluster.launcher}, container.runtime: {spec.cluster.container.runtime} and "
            f"--repeat {len(spec.run_folders)}, allowed: a job script that starts the ranks outside a container, once"
        )


def _require_machines(spec: JobSpec) -> None:
    cluster, hosts, kind = spec.cluster, spec.hosts, spec.cluster.scheduler.kind
    if kind == "none" and not hosts:
        raise UserError(
            f"cluster {cluster.name} has no scheduler: set scheduler.kind, and scheduler.wall_time_s for a limit, in "
            "its file, give --hosts A,B, or train here with ./run.sh train"
        )
    least = cluster.num_nodes + cluster.scheduler.spare_nodes
    if hosts and (kind != "none" or len(hosts) < least):
        raise UserError(
            f"--hosts: got {len(hosts)} hosts for num_nodes: {cluster.num_nodes}, scheduler.spare_nodes: "
            f"{cluster.scheduler.spare_nodes} and scheduler.kind: {kind}, allowed: so many hosts, or more as spares, "
            "with scheduler.kind: none"
        )
    if spec.spares and not (cluster.scheduler.max_restarts or cluster.scheduler.check_first):
        beyond = f" (of {len(hosts)} hosts, with num_nodes: {cluster.num_nodes})" if hosts else ""
        raise UserError(
            f"spare nodes: got {spec.spares}{beyond}, allowed: 0 where nothing would use them; set "
            "scheduler.check_first: true to leave out slow nodes, or scheduler.max_restarts to replace failed ones"
        )
    if cluster.launcher == "horovodrun" and (addresses := [host for host in hosts if ":" in host]):
        raise UserError(f"--hosts: {addresses[0]}: horovodrun takes no IPv6 address; give the host's name")


def _require_possible_job(spec: JobSpec) -> None:
    """Raise ConfigError for a value of the cluster file that is possible, but not for a job of the scheduler."""
    cluster, asked, scheduler = spec.cluster, spec.cluster.scheduler, spec.scheduler
    launcher, runtime, tracker = cluster.launcher, cluster.container.runtime, next(iter(cluster.trackers), "")
    able = [each for each in scheduler.launchers if each != "local" or cluster.num_nodes == 1]
    for is_wrong, key, allowed, remedy in (
        (tracker, "trackers", "[] in a job",
         f"leave the key out, and follow the job with ./run.sh watch RUN --track {tracker}"),
        (scheduler.has_time_limit and asked.wall_time_s is None,
         "scheduler.wall_time_s", "seconds", "a job needs a time limit: add the key"),
        (launcher not in scheduler.launchers,
         "launcher", f"{' or '.join(able)} with scheduler {asked.kind}", ""),
        (spec.spares and launcher == "local", "scheduler.spare_nodes", "0 with launcher: local", ""),
        (cluster.communication.link_bytes_per_s is not None, "communication.link_bytes_per_s",
         "null for a job, because only ./run.sh train limits the loopback", ""),
        (runtime not in scheduler.runtimes,
         "container.runtime", f"{' or '.join(scheduler.runtimes)} with scheduler {asked.kind}", ""),
        (runtime == "enroot" and launcher != "srun",
         "launcher", "srun with container.runtime: enroot, because pyxis adds containers to srun only", ""),
        # The other schedulers have an option for GPUs, which scripts use.
        (asked.kind == "gridengine" and cluster.device == "gpu" and not (spec.requests or asked.queue),
         "scheduler.resources",
         "the site's request for the GPUs of a node, for example [gpu=8] or [rt_F={num_nodes}]",
         "each site has its own: see qconf -sc; or name a queue of GPU nodes in cluster.scheduler.queue"),
        (asked.kind == "trainjob" and not asked.training_runtime,
         "scheduler.training_runtime", "the name of a ClusterTrainingRuntime (kubectl get clustertrainingruntimes)",
         "the cluster's administrators can add those of docs/kubeflow-runtimes.yaml"),
        (asked.kind == "trainjob" and launcher == "mpirun" and asked.resources, "scheduler.resources",
         "[] with launcher: mpirun, because a TrainJob cannot ask for more for the nodes of its runtime",
         "put them into the training runtime, or use launcher: torchrun"),
    ):  # fmt: skip
        if is_wrong:
            raise ConfigError(f"cluster.{key}", cluster.at(key), allowed, remedy)
    if connecting_library(cluster) == "gloo" and cluster.world_size > _GLOO_RANKS:
        allowed = f"mpi or nccl for more than {_GLOO_RANKS} ranks"
        remedy = "the time of Gloo's rendezvous grows with the square of the ranks; also set launcher: srun or mpirun"
        raise ConfigError("cluster.communication.backend", "gloo", allowed, remedy)


def _require_mounts(spec: JobSpec) -> None:
    """Raise UserError if a folder that the run needs is in none of the cluster file's mounts.

    Other schedulers mount such a folder from the host; the folders of a pod's host hold nothing of ours.
    """
    missing = set(spec.mounts) - set(spec.cluster.container.mounts)
    if missing:
        path = min(missing).partition(":")[0]
        raise UserError(
            f"container.mounts: the pods cannot see {path}; add CLAIM:{path}, and mount the claim at the same path "
            f"on this machine"
        )


def _require_train_job(spec: JobSpec) -> None:
    """Raise UserError if the cluster file asks for what a TrainJob cannot do."""
    scheduler = spec.cluster.scheduler
    if spec.cluster.launcher == "mpirun":
        return
    # Each node runs a torchrun, which knows neither the next run nor whether the ranks are to start again.
    if scheduler.max_restarts or scheduler.spare_nodes or len(spec.run_folders) > 1:
        raise UserError(
            f"cluster.scheduler: got max_restarts: {scheduler.max_restarts}, spare_nodes: {scheduler.spare_nodes} and "
            f"--repeat {len(spec.run_folders)}, allowed: 0, 0 and 1 with torchrun in a TrainJob; use launcher: mpirun"
        )
