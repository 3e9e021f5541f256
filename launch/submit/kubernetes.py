"""Kubernetes: an MPIJob of the MPI operator (kubeflow.org/v2beta1), whose launcher pod runs the job script.

The launcher reaches its workers by ssh. The operator puts the keys into root's folder, so the pods run as root. The
launcher is one pod more than the job has nodes: it runs the job script and mpirun but no rank, and asks for no GPU.
`launch.submit.train_job` writes a TrainJob from the same parts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from configs.errors import UserError
from configs.load import Dumper
from launch.submit.jobspec import JobSpec
from launch.submit.script import job_script

_GRACE_S = 30
"""Least time between SIGTERM and SIGKILL of a pod, which is also the default of Kubernetes."""

_ROOTS_KEYS = "/root/.ssh"

_SSH_PORT = 22

_LONGEST_NAME = 44
"""With ``-``, five letters of Kubernetes and ``-worker-`` with a number, a pod's name has at most 63 letters."""

_SHARED_MEMORY = "shared-memory"

SHARED_MEMORY_MOUNT = {"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}
"""A pod's own /dev/shm has 64 MB, in which the NCCL of eight ranks cannot start."""

MAY_LOCK_MEMORY = {"capabilities": {"add": ["IPC_LOCK"]}}
"""NCCL locks the memory that it registers with the InfiniBand adapters, which a pod may not do by default."""

LAUNCHER_POD = "launcher_pod"
"""The template of the job script in a launcher pod."""

_ROOT_MAY_RUN_MPI = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class _LiteralText(str):
    """A text that YAML writes line by line."""


class _Dumper(Dumper):
    """Writes a `_LiteralText` as a literal block, indents lists within mappings, and writes what occurs twice twice."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    _LiteralText, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def mpi_job(spec: JobSpec) -> str:
    """Return the MPIJob that runs a job.

    A stopped MPIJob does not start again by itself, because Kubernetes cannot tell it from a failed one. Creating the
    same MPIJob once more continues the run.

    Raises:
        UserError: ``container.mounts`` shows the pods no claim for a folder that the run needs.
    """
    require_mounts(spec)
    cluster = spec.cluster
    script = _container(spec) | {"command": script_command(spec, LAUNCHER_POD)}
    worker = _container(spec) | {
        # Every pod makes a host key of its own; the image has none.
        "command": ["bash", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -De"],
        "resources": {"limits": limits_of(spec)},
        "readinessProbe": {"tcpSocket": {"port": _SSH_PORT}, "periodSeconds": 2},
    }
    if cluster.device == "gpu":
        worker["volumeMounts"] = [*worker["volumeMounts"], SHARED_MEMORY_MOUNT]
        worker["securityContext"] = {**worker["securityContext"], **MAY_LOCK_MEMORY}
    tree = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata_of(spec, _LONGEST_NAME),
        "spec": {
            # A launcher that starts while workers still pull their image fails, and the job with it for good. Versions
            # of the operator before 0.5 do not know this field.
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": _ROOTS_KEYS,
            "slotsPerWorker": cluster.ranks_per_node,
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": spec.wall_time_s,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, spec, script, volumes_of(spec, runs_ranks=False)),
                "Worker": _replicas(spec.num_nodes, spec, worker, volumes_of(spec, runs_ranks=True)),
            },
        },
    }
    return manifest_text(tree)


def manifest_text(tree: Mapping[str, Any]) -> str:
    """Return a manifest as YAML, in which the job script is a block of lines."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


def script_command(spec: JobSpec, template: str) -> list[str]:
    """Return the command of the container that runs the job script, which is made from a template."""
    return ["bash", "-c", _LiteralText(job_script(spec, template))]


def limits_of(spec: JobSpec) -> dict[str, int | str]:
    """Return the resources of a pod that runs ranks: its GPUs, and what the cluster file asks for."""
    cluster = spec.cluster
    limits: dict[str, int | str] = {"nvidia.com/gpu": cluster.ranks_per_node} if cluster.device == "gpu" else {}
    for word in spec.resources:
        resource, _, amount = word.partition("=")
        limits[resource] = amount
    return limits


def metadata_of(spec: JobSpec, longest_name: int) -> dict[str, Any]:
    """Return the metadata of a job, whose name, cut to a length, Kubernetes completes with a dash and five letters."""
    scheduler = spec.cluster.scheduler
    return {
        "generateName": _label(spec.name, longest_name) + "-",
        **({"namespace": scheduler.queue} if scheduler.queue else {}),
        **({"labels": {"kueue.x-k8s.io/queue-name": scheduler.account}} if scheduler.account else {}),
    }


def require_mounts(spec: JobSpec) -> None:
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


def _label(name: str, longest: int) -> str:
    """Return a name in the letters that Kubernetes allows: small ones, digits and dashes, a letter first."""
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (word if word[:1].isalpha() else f"run-{word}")[:longest].rstrip("-")


def _container(spec: JobSpec) -> dict[str, Any]:
    return {
        "name": "training",
        "image": spec.cluster.container.image,
        "securityContext": {"runAsUser": 0},
        # Without them, mpirun refuses to run as root.
        "env": [{"name": name, "value": "1"} for name in _ROOT_MAY_RUN_MPI],
        "volumeMounts": mounts_of(spec),
    }


def mounts_of(spec: JobSpec) -> list[dict[str, Any]]:
    """Return where a container of the job sees its folders."""
    return [_mount(number, pair) for number, pair in enumerate(spec.mounts)]


def _mount(number: int, pair: str) -> dict[str, Any]:
    _, target, *mode = pair.split(":")
    return {"name": f"mount-{number}", "mountPath": target, **({"readOnly": True} if mode else {})}


def volumes_of(spec: JobSpec, *, runs_ranks: bool) -> list[dict[str, Any]]:
    """Return the volumes of a pod; ranks on GPUs need shared memory, whose pages count as memory of the pod."""
    volumes = [_volume(number, pair.partition(":")[0]) for number, pair in enumerate(spec.mounts)]
    needs_memory = runs_ranks and spec.cluster.device == "gpu"
    return [*volumes, *([{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}] if needs_memory else [])]


def grace_of(spec: JobSpec) -> int:
    """Return the seconds from SIGTERM to SIGKILL of a pod, in which the ranks save their state."""
    return max(_GRACE_S, spec.cluster.scheduler.notice_s)


def _replicas(
    count: int, spec: JobSpec, container: dict[str, Any], volumes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    pod = {"terminationGracePeriodSeconds": grace_of(spec), "containers": [container], "volumes": volumes}
    # The operator replaces a pod's own policy by that of its replicas, which is OnFailure for a launcher by default.
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def _volume(number: int, source: str) -> dict[str, Any]:
    """Return a volume: a path of the node if ``source`` is absolute, else the claim of that name."""
    if source.startswith("/"):
        return {"name": f"mount-{number}", "hostPath": {"path": source}}
    return {"name": f"mount-{number}", "persistentVolumeClaim": {"claimName": source}}
