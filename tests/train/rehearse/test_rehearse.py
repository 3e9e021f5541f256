"""``./run.sh rehearse``: a whole run with a run's files, which nobody can take for a result."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.blocks.rehearsal import Rehearsal, Waits
from configs.errors import UserError
from configs.load import load_both, load_run
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from logs.folder import RunFolder, Summary
from logs.judge.compliance import judge
from logs.show.reported_run import gather_run, summarise
from logs.show.watch import watch
from logs.show.wording import notes_of
from logs.weights import starting_weights
from tests.libraries import find_horovod
from tests.programs import Said, python, run_program
from train.rehearse.__main__ import main
from train.rehearse.rehearsed_run import outcome_text
from train.sim.forecast import make_scenario, time_step

WORDS = ["digits", "--cluster", "dgx-a100", "--set", "cluster.ranks_per_node=2"]


def _rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "train.rehearse", *WORDS, "--speed", "100", "--ranks", "2"]
    return run_program(*command, "--run-dir", str(folder), *words, timeout=120)


@pytest.mark.ranks
def test_a_rehearsal_whose_link_broke_reaches_its_invented_target_and_is_refused_as_a_result(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = _rehearse(folder, "--fail", "link@20:1", "--set", "cluster.scheduler.max_restarts=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each.outcome for each in RunFolder(folder).attempts.read()] == ["failed"]
    summary, recipe = RunFolder(folder).summary(), load_both("digits", "laptop")[0]
    plan = plan_run(recipe, 2)
    assert (summary.status, summary.steps, summary.is_rehearsal) == ("success", plan.total_steps, True)
    target = recipe.run.target_top1 or 0
    assert target <= (summary.top1 or 0) < target + 0.01
    assert "not a result" in done.stdout
    assert watch(folder, shown := StringIO(), every_s=1, once=True) == 0
    assert "rehearsal" in shown.getvalue().splitlines()[-1]
    assert summarise(gather_run(folder))["is_rehearsal"]
    with pytest.raises(UserError, match=f"^--from {folder}: is a rehearsal"):
        starting_weights(folder)
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
    refused = python("-m", "logs", "package", *[str(folder)] * 5)
    assert refused.returncode == 2


@pytest.mark.ranks
def test_a_spare_rank_takes_the_place_of_a_slow_one_before_the_run(tmp_path: Path) -> None:
    sets = ["cluster.scheduler.spare_nodes=1", "run.max_steps=2", "run.target_top1=null"]
    sets.append("cluster.communication.cycle_time_ms=20")  # Horovod's threads leave the processors to the ranks.
    words = [word for each in sets for word in ("--set", each)]
    done = _rehearse(tmp_path / "run", "--speed", "0.05", "--slow", "1:2", "--slow", "2:1.01", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"WARN  slow node \(node1\): (\d+\.\d) % longer than the median rank in compute", done.stdout)
    assert found
    assert 80 < float(found[1]) <= 102, "twice the time of the median rank, less what all ranks do alike"
    assert re.search(r"^left out: node1 is \d+ % slower than the median \(compute\)$", done.stdout, re.MULTILINE)
    _, cluster = RunFolder(tmp_path / "run").settings
    assert cluster.rehearsal is not None
    assert (cluster.world_size, cluster.rehearsal.slow_ranks) == (2, {"1": 1.01}), "the spare rank is rank 1 now"


def _finish_run(folder: Path, summary: Summary) -> None:
    """Write what a rehearsal that has ended leaves in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_summary(summary)
    ranks = summary.world_size or 1
    totals = {"wall_s": [1.0] * ranks, "children_cpu_s": [0.0] * ranks, "peak_memory_bytes": [1] * ranks}
    totals["cpu_s"] = [0.5] * (ranks - 1) + [0.9]
    (folder / "usage.json").write_text(json.dumps(totals), encoding="utf-8")
    rows = [
        {"time": 1.0, "busy_cores": 0.5, "memory_bytes": 1, "machine_busy_cores": machine_busy_cores}
        for machine_busy_cores in (1.0, 3.0)
    ]
    (folder / "utilisation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ends = {"imports": 0.5, "weights": 2.0, "network": 4.0, "servers": 1.0, "pipelines": 3.0}
    last = {"rank": 5, "ready_s": 3.04, "median_s": 2.5}
    phases = [{"phase": name, "begin_s": 0.4, "end_s": end} for name, end in ends.items()]
    (folder / "startup.json").write_text(
        json.dumps({"elapsed_s": 4.3, "phases": phases, "last": last}), encoding="utf-8"
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, Cluster]]:
    """Return what would be trained: only the files of a run are written, and one in a folder ``failed`` has failed."""
    runs: list[tuple[Recipe, Cluster]] = []

    def train(command: list[str], **_others: Any) -> Any:
        *_, config, _, folder = command
        runs.append(load_run(Path(config)))
        ranks = runs[-1][1].world_size
        summary = Summary("digits", "success", steps=9, world_size=ranks, global_batch_size=64, images_per_s=640.0)
        _finish_run(Path(folder), summary)
        return SimpleNamespace(returncode=int(Path(folder).name == "failed"))

    monkeypatch.setattr("subprocess.run", train)
    return runs


def test_a_rehearsal_tells_what_it_took_and_one_that_fails_has_the_status_of_the_run(
    tmp_path: Path, trained: list[tuple[Recipe, Cluster]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--ranks", "4", "--run-dir"]
    assert main([*words, str(tmp_path / "run")]) == 0
    kept = (tmp_path / "run" / "rehearsal.txt").read_text(encoding="utf-8")
    told = capsys.readouterr().out
    assert "9 steps of 100.0 ms on 4 ranks" in kept
    assert kept in told
    assert told.count("this run is a rehearsal, not a result") == 1
    assert main([*words, str(tmp_path / "failed")]) == 1
    assert capsys.readouterr().out == ""
    assert [cluster.world_size for _, cluster in trained] == [4, 4]


@pytest.fixture(params=[True, False], ids=["with MPI", "without MPI"])
def has_mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bool]:
    """Whether the Horovod that this process finds was built with MPI."""
    with pytest.MonkeyPatch.context() as patch:
        find_horovod(tmp_path_factory.mktemp("packages"), patch, has_mpi=request.param)
        yield request.param


def test_many_ranks_are_rehearsed_over_mpi_where_horovod_has_it(
    has_mpi: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: list[tuple[Recipe, Cluster]]
) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    assert main([*WORDS, "--ranks", "16", "--run-dir", str(tmp_path / "run")]) == 0
    assert [cluster.launcher for _, cluster in trained] == ["mpirun" if has_mpi else "local"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--cluster", "abci-v100"], "--ranks: got nothing"),
        (["digits", "--ranks", "2"], "--cluster: got nothing"),
        (["digits", "--slow", "1:fast"], "argument --slow: invalid RANK:FACTOR value: '1:fast'"),
        ([*WORDS, "--ranks", "2", "--slow", "1:disk:2"], "cluster.rehearsal.slow_ranks: got '1:disk:2.0'"),
    ],
)
def test_a_command_line_that_lacks_something_or_has_no_number_is_refused(
    words: list[str], message: str, said: Said
) -> None:
    assert said(main, *words, status=2).err.startswith(f"error: {message}")


def test_the_text_of_a_rehearsal_has_its_times_in_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    waits = Waits(forward_s=0.02, gradients_s=(0.05, 0.01), update_s=0.01, evaluation_s=1.0, top1=(0.5,))
    described = load_both("digits", "dgx-a100", ["cluster.communication.cycle_time_ms=4"])
    ranks = {"num_nodes": 1, "ranks_per_node": 8}
    cluster = described[1].model_copy(update={"rehearsal": Rehearsal(waits=waits, speed=2.0), **ranks})
    summary = Summary(
        "digits", "success", steps=50, world_size=8, global_batch_size=640, images_per_s=16000.0,
        comm_exposed_fraction=0.05, slowest_rank=0, rank_excess=0.123, checkpoint_s=0.25,
    )  # fmt: skip
    _finish_run(tmp_path, summary)
    step = time_step(make_scenario(*described))
    told = outcome_text(tmp_path, cluster, *described)
    for words in (
        "50 steps of 40.0 ms on 8 ranks", "sleeps 40.0 ms, exposed communication 2.0 ms", "42.0 ms, of which 2.0 are",
        "62 % busy, 11.0 ms per rank", "slowest rank: 0, 12 % longer", f"machine: {1e3 * step.total_s:.1f} ms per step",
        f"compute {1e3 * step.compute_s:.1f} and exposed communication {1e3 * step.exposed_communication_s:.1f}",
        "waited 0.25 s",
        "4.3 s, longest network 3.6, pipelines 2.6, weights 1.6, servers 0.6; rank 5 was ready last, after 3.0 s",
    ):  # fmt: skip
        assert words in told
    kept = (tmp_path / "rehearsal.txt").read_text(encoding="utf-8")
    assert told.startswith(kept)
    assert kept.count("\n") == 5
    # One rank negotiates with nobody, and is neither slower than others nor waits for them.
    _finish_run(
        tmp_path, replace(summary, world_size=1, rank_excess=None, comm_exposed_fraction=None, checkpoint_s=None)
    )
    (tmp_path / "utilisation.jsonl").unlink()
    text = outcome_text(tmp_path, cluster.model_copy(update={"ranks_per_node": 1}), *described)
    for words in (
        "exposed communication not measured",
        "of which 0.0 are",
        "0 % busy",
        "\ncheckpoints: training waited 0.00 s",
    ):
        assert words in text
    assert "slowest" not in text
    # 42 ms are predicted; the verdict changes at a tenth more or less, and at seven tenths of the processors.
    limit = "the CPU is the limit"
    verdicts = {38: (4.0, "agree"), 46: (4.0, "agree"), 37: (3.0, limit), 47: (3.0, limit), 80: (2.7, "differ")}
    for step_ms, (cores, verdict) in verdicts.items():
        _finish_run(tmp_path, replace(summary, images_per_s=640e3 / step_ms))
        sample = {"time": 1.0, "busy_cores": 0.5, "memory_bytes": 1, "machine_busy_cores": cores}
        (tmp_path / "utilisation.jsonl").write_text(json.dumps(sample) + "\n", encoding="utf-8")
        assert f"negotiation: {verdict}\n" in outcome_text(tmp_path, cluster, *described)
