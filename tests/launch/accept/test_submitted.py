"""Jobs that accept their nodes."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.registry import has_engine
from launch.submit.__main__ import main
from launch.submit.script import job_text
from tests.launch.accept.falsified import falsified_ranks
from tests.launch.golden_jobs import job
from tests.launch.scheduled import ask, slurm, submit, wait_until
from tests.launch.stand_in import write_program
from tests.programs import Said, run_program

SLURM = ["num_nodes=2", "launcher=srun", "scheduler.kind=slurm", "scheduler.wall_time_s=600"]
HOSTS = ["num_nodes=2", "launcher=horovodrun"]
_PYTHON = """case "$*" in *launch.submit.reach*) shift 4; printf '%s\\n' "$@"; exit ;; esac
printf '%s\\n' "$*"
exit 1"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "hosts", "variables"),
    [(SLURM, "", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b"}), (HOSTS, " --hosts alpha,beta", {})],
)
def test_the_script_starts_an_acceptance_and_ends_with_its_status(
    keys: list[str], hosts: str, variables: dict[str, str], tmp_path: Path
) -> None:
    script, python = tmp_path / "job.sh", write_program(tmp_path / "python", _PYTHON)
    write_program(tmp_path / "scontrol", "printf 'a\\nb\\n'")
    cluster = load_cluster("laptop", [f"cluster.{key}" for key in keys])
    spec = replace(job(cluster, 1), run_folders=(tmp_path,), program=tmp_path, python=python, accept_minutes=3.5)
    script.write_text(job_text(spec), encoding="utf-8")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    judged = run_program(shellcheck, script)
    assert (judged.returncode, judged.stdout) == (0, "")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
    done = run_program("bash", script, env=environment)
    command = f"-I -m launch.accept accept --recipe {tmp_path}/config.yaml --out {tmp_path} --minutes 3.5{hosts}"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, command), done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--accept", "0"], "--accept: got 0"),
        (["--accept", "--repeat", "2"], "--repeat 2"),
        (["--accept", "--set", "cluster.launcher=torchrun", "--set", "cluster.engine.name=torch"], "torchrun"),
        ([], "RECIPE"),
    ],
)
def test_an_acceptance_that_no_job_can_make_is_refused(words: list[str], message: str, said: Said) -> None:
    keys = [word for key in SLURM for word in ("--set", f"cluster.{key}")]
    told = said(main, "submit", "--cluster", "laptop", *keys, "--dry-run", *words, status=2).err
    assert message in told
    assert told.count("\n") == 1


def test_an_acceptance_needs_no_recipe(said: Said) -> None:
    keys = [word for key in SLURM for word in ("--set", f"cluster.{key}")]
    assert "accept --recipe" in said(main, "submit", "--cluster", "laptop", *keys, "--dry-run", "--accept").out


THREE_NODES = """
name: three-nodes
num_nodes: 3
ranks_per_node: 1
launcher: srun
node: {cores: 1}
scheduler: {kind: slurm, wall_time_s: 600}
communication: {bucket_bytes: 262144}
environment: VARIABLES
"""


@pytest.mark.scheduler
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("slurm")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.skipif(not has_engine("mxnet"), reason="the library falsifies what MXNet calls")
def test_a_job_names_the_node_whose_arithmetic_is_wrong_and_fails(tmp_path: Path) -> None:
    folder, variables = tmp_path / "run", json.dumps(falsified_ranks(tmp_path, {1: ("weight", 3)}))
    with slurm(3):
        overrides = ["model.name=resnet20", "model.image_size=8", "batch.global_size=96"]
        number = submit(THREE_NODES.replace("VARIABLES", variables), folder, "--accept", "1", overrides=overrides)
        over = ("COMPLETED", "FAILED")
        wait_until(lambda: any(f"JobState={each}" in ask("scontrol", "show", "job", number) for each in over),
                   folder / "job.log", 1)  # fmt: skip
        assert "ExitCode=1:0" in ask("scontrol", "show", "job", number)
    document = json.loads((folder / "accept.json").read_text(encoding="utf-8"))
    failed = {"node1": "pass", "node2": "failed", "node3": "pass"}
    bits = {check["host"]: check["verdict"] for check in document["checks"] if check["topic"] == "bits"}
    assert bits == failed
    assert {topic for node in ("node1", "node3") for topic in _topics(document, node)} >= {"compute", "link"}
    assert (folder / "accept.xml").exists()


def _topics(document: dict[str, list[dict[str, str]]], node: str) -> set[str]:
    return {check["topic"] for check in document["checks"] if check["host"] == node}
