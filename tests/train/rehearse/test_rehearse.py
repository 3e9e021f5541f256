"""A rehearsal is a whole run with a run's files, which nobody can take for a result."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.blocks.rehearsal import FAULTS
from configs.errors import UserError
from configs.load import ROOT, load_both
from configs.plan import plan_run
from logs.folder import read_summary
from logs.judge.compliance import judge
from train.rehearse.__main__ import _parser
from train.rehearse.described_waits import invented_top1, waits_of
from train.rehearse.rehearsal_text import RehearsedSteps, validation_text
from train.rehearse.rehearsed_run import rehearsed_run


def _rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "train.rehearse", "digits", "--cluster", "dgx-a100", "--speed", "100"]
    return subprocess.run(
        [*command, "--set", "cluster.ranks_per_node=2", "--ranks", "2", "--run-dir", str(folder), *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.ranks
def test_a_rehearsal_reaches_its_invented_target_and_is_refused_as_a_result(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = _rehearse(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    summary, recipe = read_summary(folder), load_both("digits", "laptop")[0]
    plan = plan_run(recipe, 2)
    assert (summary.status, summary.steps, summary.is_rehearsal) == ("success", plan.total_steps, True)
    assert summary.top1 is not None
    assert recipe.run.target_top1 is not None
    assert recipe.run.target_top1 <= summary.top1 < recipe.run.target_top1 + 0.01
    assert "no result" in done.stdout
    log = folder / "result_0.txt"
    assert "this is the log of a rehearsal" in judge(log, "4.0.0").messages[0]
    first, _, rest = log.read_text(encoding="utf-8").partition("\n")
    assert '"rehearsal"' in first
    stripped = tmp_path / "result_1.txt"
    stripped.write_text(rest, encoding="utf-8")
    assert judge(stripped, "4.0.0").passed
    assert len([line for line in rest.splitlines() if '"eval_accuracy"' in line]) == len(plan.eval_epochs)
    package = [sys.executable, "-m", "logs", "package", *[str(folder)] * 5]
    refused = subprocess.run(package, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2


@pytest.mark.ranks
def test_a_broken_link_ends_the_run(tmp_path: Path) -> None:
    done = _rehearse(tmp_path / "run", "--fail", "link@20:1")
    assert done.returncode == 1
    assert "rank" in done.stdout + done.stderr
    summary = read_summary(tmp_path / "run")
    assert (summary.status, summary.is_rehearsal) == ("aborted", True)
    assert "log check" not in done.stdout, "no verdict on what is no result"


def test_every_fault_is_in_the_help_and_on_the_page() -> None:
    page = (ROOT / "docs/rehearsal.md").read_text(encoding="utf-8")
    for what in FAULTS:
        assert re.search(rf"\b{what}\b", _parser().format_help())
        assert f"| `{what}` |" in page


def test_a_rehearsal_is_beside_its_prediction() -> None:
    idle = RehearsedSteps(8, step_s=0.057, compute_s=0.05, negotiation_s=0.004, busy=0.3, cpu_s=0.002)
    busy = replace(idle, step_s=0.1, busy=0.95)
    assert [each.verdict for each in (idle, busy, replace(busy, busy=0.3))] == [
        "agree", "the processors are the limit", "differ",
    ]  # fmt: skip
    assert validation_text([busy]).splitlines()[1].split()[:4] == ["8", "54.0", "100.0", "+85"]


def test_the_waits_of_the_record_are_those_of_its_gpu() -> None:
    recipe, cluster = load_both("abci-b86016", "abci-v100")
    waits = waits_of(recipe, cluster)
    assert len(waits.gradients_s) == 161
    assert waits.gradients_s[0] == max(waits.gradients_s), "the first layer's gradient arrives last"
    assert waits.gradients_s[-1] == min(waits.gradients_s)
    # The record took 52 ms a step (70.4 s without 1.4 s of evaluations, 1,340 steps), not all of it compute.
    assert 0.03 < waits.forward_s + max(waits.gradients_s) + waits.update_s < 0.052


def test_a_rehearsed_record_has_the_records_steps_and_evaluations() -> None:
    recipe, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, faults=["notice@100:63"])
    plan = plan_run(recipe, cluster.world_size)
    assert (plan.total_steps, len(plan.eval_epochs), plan.global_batch_size) == (1340, 23, 86016)
    assert plan.accumulation_steps == 1
    assert cluster.rehearsal is not None
    assert len(cluster.rehearsal.waits.top1) == 90


def test_the_invented_accuracy_reaches_the_target_with_the_last_epoch_only() -> None:
    curve = invented_top1(90, 0.759)
    assert list(curve) == sorted(curve)
    assert curve[-2] < 0.759 <= curve[-1]
    assert invented_top1(1, None) == (0.9,)


def test_what_does_not_fit_the_run_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="--ranks: got 5, allowed: a divisor of the global batch 86016"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=5)
    for words, message in {
        ("faults", "melt@3:1"): "--fail: got 'melt@3:1', allowed: WHAT@STEP:RANK",
        ("faults", "kill@3:64"): "--fail: got 'kill@3:64', allowed: a rank from 0 to 63 and a step from 1 to 1339",
        ("faults", "kill@1340:0"): "--fail: got 'kill@1340:0', allowed: a rank",
        ("slow_ranks", "64:2"): "--slow: got '64:2', allowed: RANK:FACTOR with a rank from 0 to 63",
        ("slow_ranks", "1:0"): "--slow: got '1:0'",
        ("slow_ranks", "1:x"): "--slow: got '1:x'",
    }.items():
        given: Any = {words[0]: [words[1]]}
        with pytest.raises(UserError, match=message):
            rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, **given)
    with pytest.raises(UserError, match=r"cluster\.rehearsal\.shrink: got 0"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, shrink=0)
    with pytest.raises(UserError, match="--ranks: got 3, allowed: a multiple of --nodes 2"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=3, nodes=2)


def test_ranks_that_mpi_starts_may_be_more_than_the_cores_and_leave_them_while_they_wait() -> None:
    _, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, launcher="mpirun")
    assert cluster.communication.backend == "mpi"
    assert cluster.environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert cluster.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    _, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64)
    assert (cluster.communication.backend, cluster.environment) == ("gloo", {})
