"""Kubernetes: an MPIJob of the MPI operator (kubeflow.org/v2beta1), whose launcher runs the same script.

Workers are reached by ssh, so the image needs an sshd beside what the Dockerfile installs.
"""

from __future__ import annotations

from typing import Any

import yaml

from launch.submit.jobspec import JobSpec
from launch.submit.script import Dialect, render_script

__all__ = ["KUBERNETES", "render"]

KUBERNETES = Dialect(
    hosts="awk '{ print $1 }' /etc/mpi/hostfile",
    job_id='"$(hostname)"',
    submit=("kubectl", "create", "-o", "name", "-f"),
    watch="kubectl get {job}",
    cancel="kubectl delete {job}",
    output='exec > >(tee -a "$folder/job.log") 2>&1',
    script_name="job.yaml",
)


class _Block(str):
    """A text that YAML writes line by line."""


class _Dumper(yaml.SafeDumper):
    """Writes `_Block` literally, and lists within mappings indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(_Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def render(spec: JobSpec) -> str:
    """Write the MPIJob.

    A stopped job is not begun again by itself: an MPIJob cannot tell it from a failed one. Creating it once more
    continues it.
    """
    cluster, scheduler = spec.cluster, spec.cluster.scheduler
    script = _container(spec) | {"command": ["bash", "-c", _Block(render_script(spec, KUBERNETES, []))]}
    limits: dict[str, int | str] = {"nvidia.com/gpu": cluster.ranks_per_node} if cluster.device == "gpu" else {}
    for word in spec.resources:
        resource, _, amount = word.partition("=")
        limits[resource] = amount
    worker = _container(spec) | {"command": ["/usr/sbin/sshd", "-De"], "resources": {"limits": limits}}
    tree = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {
            # A name may not hold capitals, dots or underscores.
            "generateName": spec.name.lower().replace(".", "-").replace("_", "-") + "-",
            **({"namespace": scheduler.queue} if scheduler.queue else {}),
        },
        "spec": {
            "slotsPerWorker": cluster.ranks_per_node,
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": spec.wall_time_s,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, spec, script),
                "Worker": _replicas(cluster.num_nodes, spec, worker),
            },
        },
    }
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


def _container(spec: JobSpec) -> dict[str, Any]:
    mounts = [{"name": f"mount-{number}", "mountPath": pair.split(":")[1]} for number, pair in enumerate(spec.mounts)]
    return {"name": "training", "image": spec.cluster.container.image, "volumeMounts": mounts}


def _replicas(count: int, spec: JobSpec, container: dict[str, Any]) -> dict[str, Any]:
    pod = {
        "restartPolicy": "Never",
        # From SIGTERM to SIGKILL: time to save the work.
        "terminationGracePeriodSeconds": max(30, spec.cluster.scheduler.notice_s),
        "containers": [container],
        "volumes": [_volume(number, pair.partition(":")[0]) for number, pair in enumerate(spec.mounts)],
    }
    return {"replicas": count, "template": {"spec": pod}}


def _volume(number: int, source: str) -> dict[str, Any]:
    """A path of the node's, or else the claim of that name."""
    kind = (
        {"hostPath": {"path": source}} if source.startswith("/") else {"persistentVolumeClaim": {"claimName": source}}
    )
    return {"name": f"mount-{number}", **kind}
