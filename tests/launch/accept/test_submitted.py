"""Jobs that accept their nodes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_cluster
from launch.submit.__main__ import main
from tests.launch.golden_jobs import job

SLURM = ["num_nodes=2", "launcher=srun", "scheduler.kind=slurm", "scheduler.wall_time_s=600"]
HOSTS = ["num_nodes=2", "launcher=horovodrun"]
_PYTHON = """#!/usr/bin/env bash
[[ $* != *launch.submit.reach* ]] || { shift 4 && printf '%s\\n' "$@" && exit; }
printf '%s\\n' "$*"
exit 1
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "hosts", "variables"),
    [(SLURM, "", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b"}), (HOSTS, " --hosts alpha,beta", {})],
)
def test_the_script_starts_an_acceptance_and_ends_with_its_status(
    keys: list[str], hosts: str, variables: dict[str, str], tmp_path: Path
) -> None:
    python, scontrol, script = tmp_path / "python", tmp_path / "scontrol", tmp_path / "job.sh"
    for path, text in ((python, _PYTHON), (scontrol, "#!/bin/sh\nprintf 'a\\nb\\n'\n")):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    cluster = load_cluster("laptop", [f"cluster.{key}" for key in keys])
    spec = replace(job(cluster, 1), run_folders=(tmp_path,), program=tmp_path, python=python, accept_minutes=3.5)
    script.write_text(spec.scheduler.render(spec), encoding="utf-8")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    judged = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout) == (0, "")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
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
def test_an_acceptance_that_no_job_can_make_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [word for key in SLURM for word in ("--set", f"cluster.{key}")]
    assert main(["submit", "--cluster", "laptop", *keys, "--dry-run", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_an_acceptance_needs_no_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [word for key in SLURM for word in ("--set", f"cluster.{key}")]
    assert main(["submit", "--cluster", "laptop", *keys, "--dry-run", "--accept"]) == 0
    assert "accept --recipe" in capsys.readouterr().out
