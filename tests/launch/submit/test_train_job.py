"""The TrainJob: as Kubeflow Trainer takes it, over each of the two training runtimes of this program."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from configs.load import ROOT, load_cluster, load_recipe
from launch.submit.script import job_text
from launch.submit.submission import make_job
from tests.launch.submit.manifest_judges import judge_train_job, judge_training_runtime

_RUNTIMES = {
    each["metadata"]["name"]: each
    for each in yaml.safe_load_all((ROOT / "docs/kubeflow-runtimes.yaml").read_text(encoding="utf-8"))
}
_BY_MPI = ["cluster.launcher=mpirun", "cluster.scheduler.training_runtime=resnet-records-mpi"]
_ON_CPU = [
    "cluster.engine.name=torch", "cluster.num_nodes=2", "cluster.launcher=torchrun", "cluster.scheduler.kind=trainjob",
    "cluster.scheduler.wall_time_s=600", "cluster.scheduler.training_runtime=resnet-records-torch",
    "cluster.container={runtime: docker, image: i, mounts: ['training:/runs']}",
    "cluster.paths={data: /runs/data, runs: /runs}",
]  # fmt: skip
_RECIPE, _LONG = "mlperf-b4096", 9 * "imagenet-"


def _job(cluster: str, *overrides: str, runs: int = 1, name: str = _RECIPE) -> dict[str, Any]:
    folders = tuple(Path(f"/runs/{number}") for number in range(runs))
    spec = make_job(load_recipe(_RECIPE), load_cluster(cluster, overrides), (), folders)
    job: dict[str, Any] = yaml.safe_load(job_text(replace(spec, name=name)))
    return job


@pytest.mark.medium
@pytest.mark.parametrize("name", _RUNTIMES)
def test_kubernetes_and_trainer_take_the_runtimes_and_no_pod_of_them_starts_again(name: str) -> None:
    """JobSet starts pods again whose template does not say otherwise, up to six times."""
    judge_training_runtime(_RUNTIMES[name])
    for each in _RUNTIMES[name]["spec"]["template"]["spec"]["replicatedJobs"]:
        job = each["template"]["spec"]
        assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")


@pytest.mark.medium
def test_each_node_of_the_torch_runtime_runs_the_script_with_its_gpus_and_shared_memory() -> None:
    asked = ["num_nodes=8", "scheduler.notice_s=300", "scheduler.resources=[rdma/ib=1]"]
    job = _job("a100-trainjob", *(f"cluster.{each}" for each in asked), name=_LONG)
    pods = judge_train_job(job, _RUNTIMES["resnet-records-torch"])
    assert list(pods) == ["node"]
    (node,) = pods["node"]["containers"]
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (8, 8)
    assert job["metadata"]["generateName"] == f"{4 * 'imagenet-'}im-", "so that the names of pods are names of hosts"
    assert node["resources"] == {"limits": {"nvidia.com/gpu": 8, "rdma/ib": "1"}}
    assert node["command"][2].count("torch.distributed.run") == 1
    assert [each["mountPath"] for each in node["volumeMounts"]] == ["/data", "/runs", "/dev/shm"]
    assert node["securityContext"] == {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}
    assert pods["node"]["terminationGracePeriodSeconds"] == 300


@pytest.mark.medium
def test_of_the_mpi_runtime_the_launcher_runs_the_script_and_the_nodes_have_the_gpus() -> None:
    mxnet = ["cluster.engine={name: mxnet, precision: float16, layout: NHWC}", "cluster.communication.kind=horovod"]
    job = _job("a100-trainjob", *_BY_MPI, *mxnet, name=_LONG)
    pods = judge_train_job(job, _RUNTIMES["resnet-records-mpi"])
    (node,), (launcher,) = (pods[name]["containers"] for name in ("node", "launcher"))
    # Trainer would give what the TrainJob asks for to the launcher, which runs no rank.
    assert "resources" not in launcher
    assert node["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "/dev/shm" in [each["mountPath"] for each in node["volumeMounts"]]
    assert [each["mountPath"] for each in launcher["volumeMounts"]] == ["/data", "/runs"]
    assert "getent hosts" in launcher["command"][2]
    assert node["command"][2] == "ssh-keygen -A && exec /usr/sbin/sshd -De"
    assert node["readinessProbe"]["tcpSocket"] == {"port": 22}
    runtime = _RUNTIMES["resnet-records-mpi"]["spec"]
    depends = {each["name"]: each.get("dependsOn") for each in runtime["template"]["spec"]["replicatedJobs"]}
    assert depends == {"node": None, "launcher": [{"name": "node", "status": "Ready"}]}
    assert runtime["template"]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["launcher"]
    policy = runtime["mlPolicy"]["mpi"]
    assert (policy["sshAuthMountPath"], policy["runLauncherAsNode"]) == ("/root/.ssh", False)
    assert node["securityContext"]["runAsUser"] == launcher["securityContext"]["runAsUser"] == 0


@pytest.mark.medium
def test_a_job_on_cpus_asks_for_what_its_cluster_file_says() -> None:
    asked = ["queue=teams", "account=vision", "resources=[cpu=4, memory=8Gi]"]
    job = _job("laptop", *_ON_CPU, *(f"cluster.scheduler.{each}" for each in asked))
    (node,) = judge_train_job(job, _RUNTIMES["resnet-records-torch"])["node"]["containers"]
    assert node["resources"] == {"limits": {"cpu": "4", "memory": "8Gi"}}
    assert [each["mountPath"] for each in node["volumeMounts"]] == ["/runs"]
    assert job["metadata"] == {
        "generateName": "mlperf-b4096-",
        "namespace": "teams",
        "labels": {"kueue.x-k8s.io/queue-name": "vision"},
    }
    assert "resourcesPerNode" not in _job("laptop", *_ON_CPU)["spec"]["trainer"]


@pytest.mark.parametrize(
    ("overrides", "runs", "refusal"),
    [
        (["cluster.scheduler.training_runtime=''"], 1,
         "cluster.scheduler.training_runtime: got '', allowed: .* docs/kubeflow-runtimes.yaml"),
        (["cluster.scheduler.max_restarts=1"], 1,
         "cluster.scheduler: got max_restarts: 1, .* use launcher: mpirun"),
        ([], 2, ".* and --repeat 2, allowed: 0, 0 and 1 with torchrun in a TrainJob; use launcher: mpirun"),
        ([*_BY_MPI, "cluster.scheduler.resources=[rdma/ib=1]"], 1,
         r"cluster.scheduler.resources: got \['rdma/ib=1'\], allowed: .* training runtime, or use launcher: torchrun"),
        (["cluster.container.mounts=['data:/data']"], 1, "container.mounts: .* /runs; add CLAIM:/runs, "),
    ],
)  # fmt: skip
def test_what_a_train_job_cannot_do_is_refused(overrides: list[str], runs: int, refusal: str) -> None:
    with pytest.raises(UserError, match=f"^{refusal}"):
        _job("a100-trainjob", *overrides, runs=runs)
