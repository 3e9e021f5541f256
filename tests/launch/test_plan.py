"""``./run.sh plan`` hands the ranks' environment to the planner."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from configs.load import ROOT, load_cluster
from configs.rank_variables import rank_environment
from launch.plan import main


def test_the_plan_holds_the_environment_that_ranks_would_get() -> None:
    command = [sys.executable, "-m", "launch.plan", "abci-b86016", "--cluster", "abci-v100", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["environment"] == rank_environment(load_cluster("abci-v100"))


def test_an_unknown_cluster_is_refused_before_anything_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digits", "--cluster", "abci"]) == 2
    assert "did you mean 'abci-v100'?" in capsys.readouterr().err
