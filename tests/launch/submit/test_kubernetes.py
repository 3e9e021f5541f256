"""The MPIJob: as the MPI operator defines it, and such that its pods can start our image, meet, and end."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from configs.load import ROOT, load_cluster, load_recipe
from launch.submit.jobspec import IMAGE_PROGRAM
from launch.submit.requirements import require_submittable
from launch.submit.script import job_text
from launch.submit.submission import make_job
from tests.launch.golden_jobs import job_of, script_and_manifest
from tests.launch.submit.manifest_judges import judge_mpi_job
from tests.programs import run_program

MOUNTS = "container.mounts=['training:/shared', '/models:/models:ro']"
ON_CPU = ["device=cpu", "communication.backend=mpi", "engine.precision=float32", "engine.layout=NCHW",
          "scheduler.resources=[cpu=96, memory=1Ti]"]  # fmt: skip


def _manifest(*sets: str, name: str = "digits") -> dict[str, Any]:
    spec = job_of("kubernetes", *sets)
    manifest: dict[str, Any] = yaml.safe_load(job_text(replace(spec, name=name)))
    return manifest


def _pods(manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod of the launcher and that of a worker."""
    launcher, worker = (manifest["spec"]["mpiReplicaSpecs"][kind]["template"] for kind in ("Launcher", "Worker"))
    return launcher["spec"], worker["spec"]


@pytest.mark.parametrize(
    ("sets", "name"),
    [
        (["scheduler.queue=teams", "scheduler.account=vision", MOUNTS], 9 * "imagenet-"),
        (ON_CPU, "digits"),
    ],
)
def test_kubernetes_and_the_operator_take_the_job(sets: list[str], name: str) -> None:
    judge_mpi_job(_manifest(*sets, name=name))


def test_what_a_shipped_cluster_file_submits_is_taken() -> None:
    spec = make_job(load_recipe("mlperf-b4096"), load_cluster("a100-kubernetes"), (), (Path("/runs/mlperf-b4096"),))
    judge_mpi_job(yaml.safe_load(job_text(spec)))


def test_the_launcher_waits_until_the_names_of_the_workers_are_served(tmp_path: Path) -> None:
    """The name of a pod is served after the pod is ready; what would be a failure of ssh costs a second or two."""
    script, _ = script_and_manifest("kubernetes")
    hosts = tmp_path / "hostfile"
    hosts.write_text("localhost slots=8\nno-such-worker.invalid slots=8\n", encoding="utf-8")
    script = script.replace("/etc/mpi/hostfile", str(hosts)).replace("/shared/runs/digits-1", str(tmp_path))
    waited = {**os.environ, "SECONDS": "120"}  # The shell counts the seconds of its life from this number on.
    done = run_program("bash", "-c", script, env=waited)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("error: no-such-worker.invalid: no such name after 120 s; see ")


@pytest.mark.parametrize(("notice_s", "grace_s"), [(10, 30), (30, 30), (31, 31), (300, 300)])
def test_pods_have_the_time_in_which_ranks_save_their_state(notice_s: int, grace_s: int) -> None:
    pods = _pods(_manifest(f"scheduler.notice_s={notice_s}"))
    assert [pod["terminationGracePeriodSeconds"] for pod in pods] == [grace_s] * 2


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("50 Layers_by.me!", "run-50-layers-by-me-"),
        ("!a1!", "a1-"),
        (43 * "a" + "-b", f"{43 * 'a'}-"),
        (44 * "a", f"{44 * 'a'}-"),
        (45 * "a", f"{44 * 'a'}-"),
    ],
)
def test_a_name_has_the_letters_and_the_length_that_kubernetes_allows(name: str, label: str) -> None:
    assert _manifest(name=name)["metadata"]["generateName"] == label


def test_a_mount_is_a_claim_unless_it_is_a_path_of_the_node_and_read_only_where_it_says_so() -> None:
    claim = {"name": "mount-0", "persistentVolumeClaim": {"claimName": "training"}}
    path = {"name": "mount-1", "hostPath": {"path": "/models"}}
    launcher, worker = _pods(_manifest(MOUNTS))
    assert launcher["volumes"] == [claim, path]
    assert worker["volumes"][:2] == [claim, path], "besides, ranks need shared memory"
    assert [each.get("readOnly", False) for each in worker["containers"][0]["volumeMounts"]] == [False, True, False]


def test_a_folder_that_no_claim_holds_is_refused() -> None:
    spec = replace(job_of("kubernetes"), run_folders=(Path("/elsewhere/run"),))
    with pytest.raises(UserError, match=r"^container\.mounts: the pods cannot see /elsewhere; add CLAIM:/elsewhere"):
        require_submittable(spec)


def test_a_pod_runs_the_program_of_its_image_and_a_job_of_slurm_that_of_the_shared_folder() -> None:
    for case, program, python in (
        ("kubernetes", IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv/bin/python"),
        ("slurm-gloo", ROOT, Path(sys.executable)),
    ):
        spec = make_job(load_recipe("digits"), job_of(case).cluster, (), (Path("/shared/run"),))
        assert (spec.program, spec.python) == (program, python)


def test_pods_without_gpus_ask_for_none_and_need_no_shared_memory_of_their_own() -> None:
    _, pod = _pods(_manifest(*ON_CPU))
    (worker,) = pod["containers"]
    assert worker["resources"] == {"limits": {"cpu": "96", "memory": "1Ti"}}
    assert worker["securityContext"] == {"runAsUser": 0}
    assert [each["mountPath"] for each in worker["volumeMounts"]] == ["/shared"]
    assert pod["volumes"] == [{"name": "mount-0", "persistentVolumeClaim": {"claimName": "training"}}]
