"""The MPIJob: as the MPI operator defines it, and such that its pods can start our image, meet, and end."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from configs.load import ROOT, load_cluster, load_recipe
from launch.submit.jobspec import IMAGE_PROGRAM
from launch.submit.submission import make_job
from tests.launch.golden_jobs import CASES, job
from tests.launch.submit.manifest_judges import judge_mpi_job


def _manifest(*overrides: str, name: str = "digits") -> dict[str, Any]:
    cluster, settings, runs = CASES["kubernetes.yaml"]
    paths = ["cluster.paths.data=/shared/data", "cluster.paths.runs=/shared/runs"]
    spec = job(load_cluster(cluster, [*paths, *settings, *overrides]), runs)
    manifest: dict[str, Any] = yaml.safe_load(spec.scheduler.render(replace(spec, name=name)))
    return manifest


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ((), "50 Layers_by.me!"),
        ((), 9 * "imagenet-"),
        (
            (
                "cluster.scheduler.queue=teams",
                "cluster.scheduler.account=vision",
                "cluster.scheduler.resources=[cpu=96, memory=1Ti]",
            ),
            "digits",
        ),
        (("cluster.container.mounts=['training:/shared', '/models:/models:ro']",), "digits"),
    ],
)
def test_kubernetes_and_the_operator_take_the_job(overrides: tuple[str, ...], name: str) -> None:
    judge_mpi_job(_manifest(*overrides, name=name))


def test_a_pod_that_failed_is_not_started_again_beside_the_next_attempt() -> None:
    """The operator starts a launcher again unless the replicas, not their pods, say otherwise."""
    replicas = _manifest()["spec"]["mpiReplicaSpecs"]
    assert [each["restartPolicy"] for each in replicas.values()] == ["Never", "Never"]
    assert not any("restartPolicy" in each["template"]["spec"] for each in replicas.values())


def test_the_pods_meet_as_the_user_whose_keys_the_operator_mounts_and_share_memory() -> None:
    spec = _manifest()["spec"]
    assert spec["sshAuthMountPath"] == "/root/.ssh"
    launcher, worker = (
        spec["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"][0] for kind in ("Launcher", "Worker")
    )
    assert [each["securityContext"]["runAsUser"] for each in (launcher, worker)] == [0, 0]
    assert worker["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
    assert "/dev/shm" in [each["mountPath"] for each in worker["volumeMounts"]]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/ib": "1"}
    # The launcher is one pod more than there are nodes, runs no rank, and must not wait for a GPU.
    assert "resources" not in launcher
    assert spec["mpiReplicaSpecs"]["Worker"]["replicas"] == 2


def test_the_launcher_starts_when_every_worker_answers_ssh() -> None:
    """A worker may pull its image for minutes longer than the launcher, which would fail for good."""
    spec = _manifest()["spec"]
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    worker, launcher = (
        spec["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"][0] for kind in ("Worker", "Launcher")
    )
    assert worker["readinessProbe"]["tcpSocket"] == {"port": 22}
    assert "readinessProbe" not in launcher


def test_the_launcher_waits_until_the_names_of_the_workers_are_served(tmp_path: Path) -> None:
    """The name of a pod is served after the pod is ready; what would be a failure of ssh costs a second or two."""
    script = _manifest()["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"][2]
    hosts = tmp_path / "hostfile"
    hosts.write_text("localhost slots=8\nno-such-worker.invalid slots=8\n", encoding="utf-8")
    script = script.replace("/etc/mpi/hostfile", str(hosts)).replace("/shared/runs/digits-1", str(tmp_path))
    waited = {**os.environ, "SECONDS": "120"}  # The shell counts the seconds of its life from this number on.
    done = subprocess.run(["bash", "-c", script], env=waited, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == (
        "error: no-such-worker.invalid: no such name after 120 s; see the events of the pod"
    )


@pytest.mark.parametrize("cluster", ["a100-kubernetes"])
def test_what_a_shipped_cluster_file_submits_is_taken(cluster: str) -> None:
    folder = Path("/runs/mlperf-b4096")
    spec = make_job(load_recipe("mlperf-b4096"), load_cluster(cluster), (), (folder,))
    judge_mpi_job(yaml.safe_load(spec.scheduler.render(spec)))


@pytest.mark.parametrize(("notice_s", "grace_s"), [(10, 30), (30, 30), (31, 31), (300, 300)])
def test_pods_have_the_time_in_which_ranks_save_their_state(notice_s: int, grace_s: int) -> None:
    replicas = _manifest(f"cluster.scheduler.notice_s={notice_s}")["spec"]["mpiReplicaSpecs"]
    assert [each["template"]["spec"]["terminationGracePeriodSeconds"] for each in replicas.values()] == [grace_s] * 2


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("digits", "digits-"),
        ("50 Layers_by.me!", "run-50-layers-by-me-"),
        (9 * "imagenet-", f"{4 * 'imagenet-'}imagenet-"),
        (43 * "a" + "-b", f"{43 * 'a'}-"),
        (50 * "a", f"{44 * 'a'}-"),
        ("!digits!", "digits-"),
        ("a1", "a1-"),
        (44 * "a", f"{44 * 'a'}-"),
    ],
)
def test_a_name_has_the_letters_and_the_length_that_kubernetes_allows(name: str, label: str) -> None:
    assert _manifest(name=name)["metadata"]["generateName"] == label


def test_a_read_only_mount_is_read_only() -> None:
    mounts = "cluster.container.mounts=['training:/shared', '/models:/models:ro']"
    container = _manifest(mounts)["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert [each.get("readOnly", False) for each in container["volumeMounts"][:2]] == [False, True]


def test_a_folder_that_no_claim_holds_is_refused() -> None:
    cluster, settings, runs = CASES["kubernetes.yaml"]
    spec = replace(job(load_cluster(cluster, settings), runs), run_folders=(Path("/elsewhere/run"),))
    with pytest.raises(UserError) as refusal:
        spec.scheduler.render(spec)
    assert str(refusal.value) == (
        "container.mounts: the pods cannot see /elsewhere; add CLAIM:/elsewhere, and mount the claim at the same path "
        "on this machine"
    )


def test_a_pod_runs_the_program_of_its_image_and_a_job_of_slurm_that_of_the_shared_folder() -> None:
    cluster, settings, _ = CASES["kubernetes.yaml"]
    spec = make_job(load_recipe("digits"), load_cluster(cluster, settings), (), (Path("/shared/run"),))
    assert (spec.program, spec.python) == (IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv/bin/python")
    cluster, settings, _ = CASES["slurm-gloo.sh"]
    spec = make_job(load_recipe("digits"), load_cluster(cluster, settings), (), (Path("/shared/run"),))
    assert (spec.program, spec.python) == (ROOT, Path(sys.executable))


def test_pods_without_gpus_ask_for_none_and_need_no_shared_memory_of_their_own() -> None:
    _, settings, runs = CASES["kubernetes.yaml"]
    kept = [each for each in settings if "resources" not in each]
    paths = ["cluster.paths.data=/shared/data", "cluster.paths.runs=/shared/runs"]
    given = ["cluster.communication.backend=mpi", "cluster.scheduler.resources=[cpu=96, memory=1Ti]"]
    spec = job(load_cluster("laptop", [*paths, *kept, *given]), runs)
    pod = yaml.safe_load(spec.scheduler.render(spec))["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["resources"] == {"limits": {"cpu": "96", "memory": "1Ti"}}
    assert worker["securityContext"] == {"runAsUser": 0}
    assert [each["mountPath"] for each in worker["volumeMounts"]] == ["/shared"]
    assert pod["volumes"] == [{"name": "mount-0", "persistentVolumeClaim": {"claimName": "training"}}]


def test_a_mount_is_a_claim_unless_it_is_a_path_of_the_node() -> None:
    mounts = "cluster.container.mounts=['training:/shared', '/models:/models:ro']"
    pods = [each["template"]["spec"] for each in _manifest(mounts)["spec"]["mpiReplicaSpecs"].values()]
    assert [each["volumes"][:2] for each in pods] == 2 * [
        [
            {"name": "mount-0", "persistentVolumeClaim": {"claimName": "training"}},
            {"name": "mount-1", "hostPath": {"path": "/models"}},
        ]
    ]
    assert [len(each["volumes"]) for each in pods] == [2, 3], "only ranks need shared memory"
