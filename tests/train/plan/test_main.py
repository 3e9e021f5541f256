"""``./run.sh plan`` prints the plan as text and as JSON, in about a second and without MXNet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT, load_cluster
from configs.rank_variables import rank_environment
from train.plan.__main__ import main


def test_the_plan_holds_the_environment_that_ranks_would_get(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "abci-b86016", "--cluster", "abci-v100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment"] == rank_environment(load_cluster("abci-v100"))


def test_an_unknown_cluster_is_refused_before_anything_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "digits", "--cluster", "abci"]) == 2
    assert "did you mean 'abci-v100'?" in capsys.readouterr().err


@pytest.mark.ranks
def test_the_command_prints_json_and_a_figure_without_importing_mxnet(tmp_path: Path) -> None:
    picture = tmp_path / "rate.png"
    code = (
        "import sys; from train.plan.__main__ import main; "
        f"status = main(['plan', 'digits', '--json', '--plot', {str(picture)!r}]); "
        "assert 'mxnet' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    assert plan["recipe"] == "digits"
    assert plan["command"] == "./run.sh train digits --cluster laptop"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_text_says_why_the_record_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "abci-b86016", "--cluster", "abci-v100"]) == 0
    text = capsys.readouterr().out
    assert "86,016 = 2,048 ranks x 42 images x 1 micro-batches" in text
    assert "reference_convergence_point: batch.global_size is 86016, allowed: at most 67840 (4.0.0)" in text
    assert "optimizer  lars, momentum 0.96, weight_decay 5e-05, trust_coefficient 0.0025" in text
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--cluser", "laptop"], "error: '--cluser' is not expected here; did you mean '--cluster'?"),
        (["digits", "--cluser=laptop"], "error: '--cluser' is not expected here; did you mean '--cluster'?"),
        (["nosuch"], "error: recipe: got 'nosuch'"),
        (["abci-b86016", "--set", "cluster.ranks_per_node=5"], "error: batch.global_size: got 86016, allowed: a "),
        (["digits", "--plot", "/nonexistent/rate.png"], "error: /nonexistent/rate.png: cannot be written"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert not captured.out
