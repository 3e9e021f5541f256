"""What refuses a manifest in a cluster, as far as it is a package or a text: the schemas of other people, strictly.

Kubernetes' own schemas come with kubernetes-validate, the models of a TrainJob and its runtime with
kubeflow-trainer-api.
"""

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

# It parses megabytes of definitions anew for each object that it validates.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

_KUBERNETES = ("1.30", "1.37")
"""The oldest and the newest version of Kubernetes that a manifest has to please."""

_MPI_JOB = yaml.safe_load((Path(__file__).parent / "mpijobs_crd.yaml").read_text(encoding="utf-8"))

_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"

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


def judge_training_runtime(runtime: dict[str, Any]) -> None:
    """Raise if Kubeflow Trainer would not take a training runtime, or Kubernetes a pod of it."""
    assert (runtime["apiVersion"], runtime["kind"]) == ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime")
    _judge_by_model("TrainerV1alpha1ClusterTrainingRuntime", runtime)
    judge_metadata(runtime["metadata"])
    jobs = {each["name"]: each["template"] for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    for template in jobs.values():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "judged"}, "spec": template["spec"]}
        judge_object(job)
        judge_pod_template(template["spec"]["template"])
    # What the webhook asks for: one container whose command the TrainJob gives.
    asked = [each for each in jobs.values() if each.get("metadata", {}).get("labels") == {_ANCESTOR: "trainer"}]
    assert [container["name"] for each in asked for container in each["spec"]["template"]["spec"]["containers"]] == [
        "node"
    ]


def judge_train_job(job: dict[str, Any], runtime: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Raise if Kubeflow Trainer 2.3 would not take a TrainJob over its runtime, or Kubernetes a pod of it.

    Returns:
        The job of the runtime -> the pod that Trainer's controller makes of runtime, patches and trainer.
    """
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    _judge_by_model("TrainerV1alpha1TrainJob", job)
    judge_metadata(job["metadata"])
    spec, trainer = job["spec"], job["spec"]["trainer"]
    assert spec["runtimeRef"] == {"name": runtime["metadata"]["name"]}
    assert spec["activeDeadlineSeconds"] >= 1
    pods = {}
    for each in deepcopy(runtime)["spec"]["template"]["spec"]["replicatedJobs"]:
        pods[each["name"]] = pod = each["template"]["spec"]["template"]["spec"]
        longest_name = f"{job['metadata']['generateName']}abcde-{each['name']}-0-{trainer['numNodes'] - 1}-abcde"
        assert _HOSTNAME.fullmatch(longest_name), longest_name
        if each["template"].get("metadata", {}).get("labels") == {_ANCESTOR: "trainer"}:
            (container,) = pod["containers"]
            container |= {"image": trainer["image"], "command": trainer["command"]}
            container |= {"resources": trainer["resourcesPerNode"]} if "resourcesPerNode" in trainer else {}
    (patch,) = spec["runtimePatches"]
    assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[-A-Za-z0-9._~]+", patch["manager"]), "a domain and a path"
    for each in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
        pod, change = pods[each["name"]], dict(each["template"]["spec"]["template"]["spec"])
        for container in change.pop("containers"):
            assert "env" not in container, "spec.trainer.env is the place for the variables of this container"
            (patched,) = (known for known in pod["containers"] if known["name"] == container["name"])
            patched["volumeMounts"] = [*patched.get("volumeMounts", []), *container["volumeMounts"]]
            patched["securityContext"] = {**patched.get("securityContext", {}), **container.get("securityContext", {})}
        assert not change.keys() & pod.keys(), "a merge of lists is not tried here"
        pod |= change
    for pod in pods.values():
        judge_pod_template({"spec": pod})
    return pods


def _judge_by_model(name: str, thing: dict[str, Any]) -> None:
    """Raise if a thing has wrong types, or fields that Trainer's model does not know and therefore leaves out."""
    from kubeflow_trainer_api import models  # a second, which the quick tests do not need

    assert getattr(models, name).from_dict(thing).to_dict() == thing


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
