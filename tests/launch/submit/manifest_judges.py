"""What refuses a manifest in a cluster, as far as it is a package or a text: the schemas of other people, strictly.

Kubernetes' own schemas come with kubernetes-validate.
"""

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

_KUBERNETES = ("1.30", "1.37")
"""The oldest and the newest version of Kubernetes that a manifest has to please."""

_MPI_JOB = yaml.safe_load((Path(__file__).parent / "mpijobs_crd.yaml").read_text(encoding="utf-8"))

_HOSTNAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def judge_mpi_job(job: dict[str, Any]) -> None:
    """Raise if the MPI operator v0.8 would not take a job, or Kubernetes a pod of it.

    Beyond the schema of the operator, its controller and webhook check what pkg/apis/kubeflow/validation says.
    """
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    jsonschema.validate(job, _without_unknown_fields(_MPI_JOB))
    judge_metadata(job["metadata"])
    spec = job["spec"]
    assert spec["launcherCreationPolicy"] in ("AtStartup", "WaitForWorkersReady")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    assert (
        min(spec["runPolicy"]["backoffLimit"], spec["runPolicy"]["activeDeadlineSeconds"], spec["slotsPerWorker"]) >= 0
    )
    replicas = spec["mpiReplicaSpecs"]
    assert replicas.keys() == {"Launcher", "Worker"}
    assert replicas["Launcher"]["replicas"] == 1 <= replicas["Worker"]["replicas"]
    longest_name = f"{job['metadata']['generateName']}abcde-worker-{replicas['Worker']['replicas'] - 1}"
    assert _HOSTNAME.fullmatch(longest_name), longest_name
    for each in replicas.values():
        assert each["restartPolicy"] in ("Never", "OnFailure")
        judge_pod_template(each["template"])


def judge_metadata(metadata: dict[str, Any]) -> None:
    """Raise if Kubernetes would not take the metadata of an object."""
    judge_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    assert _HOSTNAME.fullmatch(metadata.get("name") or metadata["generateName"] + "abcde")


def judge_pod_template(template: dict[str, Any]) -> None:
    """Raise if Kubernetes would not take a pod: its fields, and the volumes that its containers mount."""
    judge_object({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "judged"}, "template": template})
    pod = template["spec"]
    volumes = [each["name"] for each in pod.get("volumes", [])]
    assert len(set(volumes)) == len(volumes)
    # A volume is one source besides its name, and the schemas do not say so.
    assert all(len(each) == len({"name", "source"}) for each in pod.get("volumes", []))
    for container in pod["containers"]:
        mounts = container.get("volumeMounts", [])
        assert {each["name"] for each in mounts} <= set(volumes)
        assert len({each["mountPath"] for each in mounts}) == len(mounts)


def judge_object(thing: dict[str, Any]) -> None:
    """Raise if Kubernetes would not take an object of its own kinds, or would ignore a field of it."""
    for version in _KUBERNETES:
        kubernetes_validate.validate(thing, version, strict=True)


def _without_unknown_fields(schema: Any) -> Any:
    """Return a schema that refuses the fields that it does not name, as kubectl does; metadata is Kubernetes' own."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _without_unknown_fields(value) for key, value in schema.items()}
    return closed if "properties" not in closed else {"additionalProperties": False, **closed}
