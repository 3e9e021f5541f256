"""Kubernetes: a TrainJob of Kubeflow Trainer 2.3 (trainer.kubeflow.org/v1alpha1), over a training runtime.

A training runtime, which the administrators of the cluster own, says how the pods are made; docs/kubeflow-runtimes.yaml
has two for this program. With the policy torch, each node is a pod that runs the job script and in it torchrun, which
finds the other nodes by the PET_* variables of the pod; the script of the first node begins and closes the run. With
the policy mpi, a launcher pod runs the script and mpirun, as that of an MPIJob does, and the nodes run ssh servers.

*Source* of what a TrainJob may say, and of what the controller makes of it: kubeflow/trainer v2.3.0, docs and
pkg/runtime/framework/plugins.
"""

from typing import Any

from configs.errors import ConfigError, UserError
from launch.submit.jobspec import JobSpec
from launch.submit.kubernetes import (
    LAUNCHER_POD,
    MAY_LOCK_MEMORY,
    SHARED_MEMORY_MOUNT,
    grace_of,
    limits_of,
    manifest_text,
    metadata_of,
    mounts_of,
    require_mounts,
    script_command,
    volumes_of,
)

_CONTAINER = "node"
"""Trainer sets variables, image and command in the containers of this name only."""

_LONGEST_NAME = 38
"""With ``-`` and five letters, ``-launcher-0-0-`` or ``-node-0-`` and a number, and five letters more, a pod's name has
at most 63 letters; JobSet refuses longer ones."""

_NODE_POD = "node_pod"
"""The template of the job script in the pod of each node."""


def train_job(spec: JobSpec) -> str:
    """Return the TrainJob that runs a job.

    Raises:
        UserError: The cluster file names no training runtime, asks for what a TrainJob cannot do, or
            ``container.mounts`` shows the pods no claim for a folder that the run needs.
    """
    _require_possible(spec)
    require_mounts(spec)
    cluster = spec.cluster
    has_launcher = cluster.launcher == "mpirun"
    trainer: dict[str, Any] = {
        "image": cluster.container.image,
        "command": script_command(spec, LAUNCHER_POD if has_launcher else _NODE_POD),
        "numNodes": spec.num_nodes,
        "numProcPerNode": cluster.ranks_per_node,
    }
    if (limits := limits_of(spec)) and not has_launcher:
        trainer["resourcesPerNode"] = {"limits": limits}
    pods = [_pod_patch(spec, "node", runs_ranks=True)]
    if has_launcher:
        pods.append(_pod_patch(spec, "launcher", runs_ranks=False))
    tree = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata_of(spec, _LONGEST_NAME),
        "spec": {
            "runtimeRef": {"name": cluster.scheduler.training_runtime},
            "activeDeadlineSeconds": spec.wall_time_s,
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": "resnet-records/submit",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": pods}}},
                }
            ],
        },
    }
    return manifest_text(tree)


def _pod_patch(spec: JobSpec, job: str, *, runs_ranks: bool) -> dict[str, Any]:
    """Return what the pods of one job of the runtime get: the folders, shared memory, and time to save their state."""
    container: dict[str, Any] = {"name": _CONTAINER, "volumeMounts": mounts_of(spec)}
    if runs_ranks and spec.cluster.device == "gpu":
        container["volumeMounts"].append(SHARED_MEMORY_MOUNT)
        container["securityContext"] = MAY_LOCK_MEMORY
    pod = {
        "terminationGracePeriodSeconds": grace_of(spec),
        "volumes": volumes_of(spec, runs_ranks=runs_ranks),
        "containers": [container],
    }
    return {"name": job, "template": {"spec": {"template": {"spec": pod}}}}


def _require_possible(spec: JobSpec) -> None:
    scheduler = spec.cluster.scheduler
    if not scheduler.training_runtime:
        remedy = "the cluster's administrators can add those of docs/kubeflow-runtimes.yaml"
        allowed = "the name of a ClusterTrainingRuntime (kubectl get clustertrainingruntimes)"
        raise ConfigError("cluster.scheduler.training_runtime", "", allowed, remedy)
    if spec.cluster.launcher == "mpirun":
        if scheduler.resources:
            remedy = "put them into the training runtime, or use launcher: torchrun"
            allowed = "[] with launcher: mpirun, because a TrainJob cannot ask for more for the nodes of its runtime"
            raise ConfigError("cluster.scheduler.resources", list(scheduler.resources), allowed, remedy)
        return
    # Each node runs a torchrun, which knows neither the next run nor whether the ranks are to start again.
    for key, value in (("max_restarts", scheduler.max_restarts), ("spare_nodes", scheduler.spare_nodes)):
        if value:
            allowed = "0 with torchrun in a TrainJob"
            raise ConfigError(f"cluster.scheduler.{key}", value, allowed, "or use launcher: mpirun")
    if len(spec.run_folders) > 1:
        raise UserError(
            f"--repeat: got {len(spec.run_folders)}, allowed: 1 with torchrun in a TrainJob; submit several jobs, or "
            "use launcher: mpirun"
        )
