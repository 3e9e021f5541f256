"""A rehearsal is a whole run with a run's files, which nobody can take for a result."""

import json
import re
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.blocks.rehearsal import FAULTS, MOST_SLOW, Rehearsal, Waits
from configs.errors import UserError
from configs.load import ROOT, load_both, load_run
from configs.plan import plan_run
from logs.folder import Summary, read_summary, write_summary
from logs.judge.compliance import judge
from logs.show.reported_run import gather_run
from logs.show.wording import notes_of
from train.rehearse.__main__ import _parser, main
from train.rehearse.described_waits import invented_top1, waits_of
from train.rehearse.rehearsal_text import RehearsedSteps, comparison_text, course_text, rehearsed_steps, validation_text
from train.rehearse.rehearsed_run import _kept, rehearsed_job, rehearsed_run
from train.sim.step_time import StepTime

DESCRIBED = StepTime(0.01, 0.02, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, ())


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
    predicted = re.search(r"predicted for these ranks: .*", done.stdout)
    assert predicted
    assert f"P{predicted.group()[1:]}." in notes_of(gather_run(folder))
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
    assert validation_text([busy, idle]).splitlines() == [
        "ranks  predicted ms  rehearsed ms  difference  processors busy  ms of processor a rank and step",
        "    8          54.0         100.0        +85 %             95 %         2.0  the processors are the limit",
        "    8          54.0          57.0         +6 %             30 %         2.0  agree",
    ]


def _finish_run(folder: Path, summary: Summary) -> None:
    """Write what a rehearsal that has ended leaves in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(folder, summary)
    (folder / "usage.json").write_text(json.dumps({"cpu_s": [0.5] * 7 + [0.9]}), encoding="utf-8")
    rows = [{"machine_busy_cores": busy} for busy in (1.0, 3.0)]
    (folder / "utilisation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ends = {"imports": 0.5, "weights": 2.0, "network": 4.0, "servers": 1.0, "pipelines": 3.0}
    last = {"rank": 5, "ready_s": 3.04, "median_s": 2.5}
    phases = [{"phase": name, "begin_s": 0.4, "end_s": end} for name, end in ends.items()]
    (folder / "startup.json").write_text(
        json.dumps({"elapsed_s": 4.3, "phases": phases, "last": last}), encoding="utf-8"
    )


def test_a_validation_has_a_folder_of_each_number_of_ranks_and_ends_with_the_first_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = iter([0, 0, 1])

    def run(command: list[str], **_others: Any) -> Any:
        *_, config, _, folder = command
        ranks = load_run(Path(config))[1].world_size
        summary = Summary("digits", "success", steps=9, world_size=ranks, global_batch_size=64, images_per_s=640.0)
        _finish_run(Path(folder), summary)
        return SimpleNamespace(returncode=next(statuses))

    monkeypatch.setattr("subprocess.run", run)
    words = ["digits", "--cluster", "dgx-a100", "--set", "cluster.ranks_per_node=2", "--ranks", "4", "--validate"]
    assert main([*words, "--run-dir", str(tmp_path / "both")]) == 0
    told = capsys.readouterr().out
    for ranks, row in zip((2, 4), told.splitlines()[-2:], strict=True):
        kept = (tmp_path / "both" / f"ranks-{ranks}" / "rehearsal.txt").read_text(encoding="utf-8")
        assert f"9 steps of 100.0 ms on {ranks} ranks" in kept
        assert kept in told
        assert row.split()[0] == str(ranks)
    assert told.count("this run is a rehearsal and no result") == 2
    assert main([*words, "--run-dir", str(tmp_path / "failed")]) == 1
    assert [path.name for path in (tmp_path / "failed").iterdir()] == ["ranks-2"]
    assert capsys.readouterr().out == ""


def test_the_text_of_a_rehearsal_has_its_times_in_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    waits = Waits(forward_s=0.02, gradients_s=(0.05, 0.01), update_s=0.01, evaluation_s=1.0, top1=(0.5,))
    _, cluster = load_both("digits", "dgx-a100", ["cluster.communication.cycle_time_ms=4"])
    cluster = cluster.model_copy(update={"rehearsal": Rehearsal(waits=waits, speed=2.0)})
    summary = Summary(
        "digits", "success", steps=50, world_size=8, global_batch_size=640, images_per_s=16000.0,
        comm_exposed_fraction=0.05, slowest_rank=3, rank_excess=0.123, checkpoint_s=0.25,
    )  # fmt: skip
    _finish_run(tmp_path, summary)
    steps = rehearsed_steps(tmp_path, cluster)
    assert astuple(steps) == pytest.approx((8, 0.04, 0.04, 0.002, 0.5, 4.4 / 8 / 50))
    alone = replace(summary, world_size=1, rank_excess=None, comm_exposed_fraction=None)
    text = comparison_text(tmp_path, cluster, DESCRIBED).splitlines()
    assert text == [
        "rehearsed: 50 steps of 40.0 ms on 8 ranks of this machine: waits 40.0 ms, exposed communication 2.0 ms",
        "predicted for these ranks: 42.0 ms, of which 2.0 are half an interval of Horovod's negotiation: agree",
        "processors: 50 % busy, with ranks 11.0 ms a rank and step",
        "slowest rank: 3, 12 % longer than the median rank",
        "predicted for the described machine: 63.0 ms a step, of which compute 30.0 and exposed communication 5.0",
    ]
    assert course_text(tmp_path).splitlines() == [
        "checkpoints: training waited 0.25 s for them",
        "start-up of rank 0: 4.3 s, longest network 3.6, pipelines 2.6, weights 1.6, servers 0.6; "
        "rank 5 was ready last, after 3.0 s, the median rank after 2.5 s",
    ]
    write_summary(tmp_path, alone)
    text = comparison_text(tmp_path, cluster, DESCRIBED).splitlines()
    assert "exposed communication not measured" in text[0]
    assert not any(line.startswith("slowest") for line in text)
    assert rehearsed_steps(tmp_path, cluster).negotiation_s == 0
    (tmp_path / "utilisation.jsonl").write_text("", encoding="utf-8")
    assert rehearsed_steps(tmp_path, cluster).busy == 0, "a run shorter than the first sample"
    (tmp_path / "utilisation.jsonl").unlink()
    assert rehearsed_steps(tmp_path, cluster).busy == 0, "or one that was not sampled"
    write_summary(tmp_path, replace(summary, world_size=2, slowest_rank=0, rank_excess=0.5, checkpoint_s=None))
    assert rehearsed_steps(tmp_path, cluster).negotiation_s == 0.002
    assert "slowest rank: 0, 50 % longer" in comparison_text(tmp_path, cluster, DESCRIBED)
    assert course_text(tmp_path).startswith("checkpoints: training waited 0.00 s")
    write_summary(tmp_path, replace(summary, slowest_rank=None))
    assert "slowest" not in comparison_text(tmp_path, cluster, DESCRIBED)


def test_the_verdict_changes_at_a_tenth_and_at_seven_tenths_of_the_processors() -> None:
    at_bound = RehearsedSteps(8, step_s=1.1, compute_s=0.75, negotiation_s=0.25, busy=0.71, cpu_s=0.0)
    steps = (replace(at_bound, step_s=each) for each in (0.91, 1.09, 0.89, 1.11))
    limit = "the processors are the limit"
    assert [each.verdict for each in steps] == ["agree", "agree", limit, limit]
    assert replace(at_bound, step_s=2.0, busy=0.7).verdict == "differ"


def test_the_waits_of_the_record_are_those_of_its_gpu() -> None:
    recipe, cluster = load_both("abci-b86016", "abci-v100")
    waits = waits_of(recipe, cluster)
    assert len(waits.gradients_s) == 161
    assert waits.gradients_s[0] == max(waits.gradients_s), "the first layer's gradient arrives last"
    assert waits.gradients_s[-1] == min(waits.gradients_s)
    # The record took 52 ms a step (70.4 s without 1.4 s of evaluations, 1,340 steps), not all of it compute.
    assert 0.03 < waits.forward_s + max(waits.gradients_s) + waits.update_s < 0.052


def test_an_evaluation_waits_as_long_as_its_images_take() -> None:
    waits = [
        waits_of(*load_both("imagenet-b256", "a100-node", [f"data.eval_samples={images}"]))
        for images in (50_000, 5_000)
    ]
    fixed_s = 0.02
    assert waits[0].evaluation_s - fixed_s == pytest.approx(10 * (waits[1].evaluation_s - fixed_s))


def test_micro_batches_of_the_described_machine_become_one_here() -> None:
    described = load_both("digits", "dgx-a100", ["cluster.ranks_per_node=2", "batch.accumulation_steps=2"])
    recipe, cluster = rehearsed_run(*described, ranks=2)
    assert plan_run(described[0], 2).accumulation_steps == 2
    assert plan_run(recipe, 2).accumulation_steps == 1
    assert cluster.world_size == 2


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
    assert invented_top1(4, 0.998)[-1] == 1


def test_what_does_not_fit_the_run_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="--ranks: got 5, allowed: a divisor of the global batch 86016"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=5)
    for words, message in {
        ("faults", "melt@3:1"): "--fail: got 'melt@3:1', allowed: WHAT@STEP:RANK",
        ("faults", "kill@3:64"): "--fail: got 'kill@3:64', allowed: a rank from 0 to 63 and a step from 1 to 1339",
        ("faults", "kill@1340:0"): "--fail: got 'kill@1340:0', allowed: a rank",
        ("slow_ranks", "64:2"): "--slow: got '64:2', allowed: RANK:FACTOR with a rank from 0 to 63",
        ("slow_ranks", "1:0"): "--slow: got '1:0'",
        ("slow_ranks", f"1:{MOST_SLOW + 1}"): f"--slow: got '1:{MOST_SLOW + 1}'.* at most {MOST_SLOW}",
        ("slow_ranks", "1:x"): "--slow: got '1:x'",
    }.items():
        given: Any = {words[0]: [words[1]]}
        with pytest.raises(UserError, match=message):
            rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, **given)
    with pytest.raises(UserError, match=r"cluster\.rehearsal\.shrink: got 0"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, shrink=0)
    with pytest.raises(UserError, match="--ranks: got 3, allowed: 1 or more, a multiple of --nodes 2"):
        rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=3, nodes=2)


def test_the_interval_grows_with_the_ranks_and_once_more_where_many_share_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described, found = load_both("abci-b86016", "abci-v100"), {}
    for cores in (2, 16):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        for ranks in (4, 64):
            _, cluster = rehearsed_run(*described, ranks=ranks)
            found[cores, ranks] = cluster.communication.cycle_time_ms
    assert found == {(2, 4): 4, (2, 64): 128, (16, 4): 4, (16, 64): 64}


def test_ranks_that_mpi_starts_may_be_more_than_the_cores_and_leave_them_while_they_wait() -> None:
    _, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64, launcher="mpirun")
    assert cluster.communication.backend == "mpi"
    assert cluster.environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert cluster.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    _, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=64)
    # What the described cluster sets for Horovod is rehearsed; NCCL and the kernels are not.
    assert (cluster.communication.backend, cluster.environment) == ("gloo", {"HOROVOD_BATCH_D2D_MEMCOPIES": "1"})


def test_what_the_described_machine_decides_is_kept_and_what_this_one_needs_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    changed = ["cluster.engine.run_ahead_steps=3", "cluster.communication.bucket_fraction=0.125"]
    changed += ["cluster.engine.update_groups=3", "cluster.paths.runs=/shared/runs", "cluster.paths.data=/shared/data"]
    recipe, described = load_both("abci-b86016", "abci-v100", changed)
    given: Any = {"slow_ranks": ["1:2.5", f"2:{MOST_SLOW}"], "faults": ["kill@3:1"], "shrink": 64, "speed": 5.0}
    rehearsed, cluster = rehearsed_run(recipe, described, ranks=64, nodes=2, launcher="mpirun", **given)
    assert (cluster.num_nodes, cluster.ranks_per_node, cluster.device) == (2, 32, "cpu")
    assert cluster.communication.bucket_bytes == described.communication.bucket_bytes
    assert cluster.communication.bucket_fraction == described.communication.bucket_fraction
    assert cluster.communication.cycle_time_ms == 64
    assert cluster.communication.timeout_s == max(600, described.communication.timeout_s)
    assert (cluster.watchdog_s, cluster.checkpoint) == (described.watchdog_s, described.checkpoint)
    assert (cluster.engine.precision, cluster.engine.run_ahead_steps) == (described.engine.precision, 3)
    # 2,048 ranks of the record leave out the images that no whole share of a rank has.
    assert rehearsed.data.train_samples == 1_281_167 // 2048 * 2048
    assert cluster.rehearsal is not None
    told = cluster.rehearsal
    assert (told.slow_ranks, told.faults) == ({"1": 2.5, "2": MOST_SLOW}, ("kill@3:1",))
    assert (told.shrink, told.speed) == (64, 5.0)
    assert cluster.engine.update_groups == 3
    assert (cluster.paths.runs, cluster.paths.data) == ("/shared/runs", "/shared/data")
    few = rehearsed_run(recipe, described, ranks=2)[1].communication.cycle_time_ms
    assert few == max(2, described.communication.cycle_time_ms)


def test_a_setting_that_is_nothing_or_false_is_kept_too() -> None:
    assert _kept({"a": 0, "b": False, "c": None, "d": 1}, "a", "b", "c") == {"a": 0, "b": False, "c": None}


def test_a_rehearsed_job_changes_nothing_of_its_cluster_but_what_computes() -> None:
    described = load_both("abci-b86016", "abci-v100", ["cluster.communication.bucket_fraction=0.125"])
    recipe, cluster = rehearsed_job(*described, shrink=3, speed=2, faults=["kill@9:2047"])
    assert cluster.rehearsal is not None
    assert (cluster.rehearsal.shrink, cluster.rehearsal.speed, cluster.rehearsal.faults) == (3, 2, ("kill@9:2047",))
    assert (cluster.device, cluster.communication.backend, cluster.engine.name) == ("cpu", "mpi", "timed")
    assert (cluster.communication.bucket_bytes, cluster.communication.bucket_fraction) == (16 << 20, 0.125)
    assert not cluster.scheduler.check_first
    kept = ("num_nodes", "ranks_per_node", "launcher", "container", "node", "environment", "paths", "watchdog_s")
    assert {name: getattr(cluster, name) for name in kept} == {name: getattr(described[1], name) for name in kept}
    assert plan_run(recipe, 2048).total_steps == plan_run(described[0], 2048).total_steps
    with pytest.raises(UserError, match="--fail: got 'kill@9:2048', allowed: a rank from 0 to 2047"):
        rehearsed_job(*described, shrink=1, speed=1, faults=["kill@9:2048"])


def test_ranks_of_a_job_that_mpi_does_not_start_meet_over_gloo() -> None:
    _, cluster = rehearsed_job(*load_both("imagenet-b256", "a100-node"), shrink=1, speed=1)
    assert (cluster.launcher, cluster.communication.backend) == ("local", "gloo")


def test_processes_on_this_machine_have_to_be_counted() -> None:
    assert main(["rehearse", "digits", "--cluster", "abci-v100"]) == 2
