"""What a rank writes of a run: the summary's columns, the log before the seed, and all of it in whole small runs.

The runs train two ranks, which are threads of this process.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("mxnet")  # which has the ranks that are threads

from configs.load import dump, load_both, load_cluster
from configs.registry import has_engine
from logs.checkpoints import SavedState, read, step_of
from logs.folder import RunFolder
from logs.metrics import METRICS_FILE, read_metrics
from logs.weights import starting_weights
from tests.engines import ALONE
from tests.runs import made_once
from train import session
from train.checkpoint import evaluated_weights
from train.comm.communicator import SingleProcess
from train.export.exported_run import ExportedRun
from train.export.formats import evaluate, export_network
from train.rank.signals import RunStopped
from train.rank.startup import WAITING, Ledger
from train.session import opened_log, run


@pytest.mark.parametrize("is_cold", [True, False])
def test_the_log_begins_with_who_submits_and_a_cleared_cache_only_if_it_is(tmp_path: Path, is_cold: bool) -> None:
    recipe, cluster = load_both("digits", "laptop", ["run.seed=7"])
    with opened_log(tmp_path, recipe, cluster, replace(ALONE, rank=1), is_cold=is_cold):
        assert list(tmp_path.iterdir()) == [], "rank 0 alone writes"
    with opened_log(tmp_path, recipe, cluster, ALONE, is_cold=is_cold):
        pass
    lines = (tmp_path / "result_0.txt").read_text(encoding="utf-8").splitlines()
    keys = [(row["key"], row["value"]) for row in (json.loads(line.partition(" ")[2]) for line in lines)]
    submission = [key for key, _ in keys if key.startswith("submission_")]
    assert len(submission) == 7
    cleared = [("cache_clear", True)] if is_cold else []
    assert keys[len(submission) :] == [*cleared, ("init_start", None), ("seed", 7)]


SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
    "model.name=resnet8", "model.image_size=8", "batch.global_size=16", "run.epochs=2", "run.eval_every_epochs=1",
    "run.eval_first_epoch=1", "run.target_top1=null", "run.log_every_steps=1", "schedule.warmup_epochs=1",
    "cluster.communication.kind=devices", "cluster.checkpoint.every_epochs=1", "cluster.checkpoint.keep=9",
]  # fmt: skip
"""Two epochs of four steps."""


class Signals:
    """The signals of a rank that is told to stop in its ``last`` step."""

    def __init__(self, last: int | None) -> None:
        self.last, self.asked, self.waits = last, 0, False

    def wait_for_step(self) -> None:
        self.waits = True

    def told_to_stop(self) -> bool:
        self.asked += 1
        return self.asked == self.last


class _Watched:
    """In place of a watchdog, which would end the tests' process; remembers what it was told."""

    def __init__(self, made: list[_Watched], timeout_s: float, _report: object) -> None:
        self.told: list[Any] = [timeout_s]
        self.steps: list[int | None] = []
        made.append(self)

    def __call__(self, step: int | None = None) -> None:
        self.steps.append(step)

    def expect(self, timeout_s: float) -> None:
        self.told.append(timeout_s)
        self.steps.clear()

    def follow(self, _peers: object) -> None:
        pass

    def rest(self) -> None:
        self.told.append("rest")


@pytest.fixture(autouse=True)
def watchdogs(monkeypatch: pytest.MonkeyPatch) -> list[_Watched]:
    """Give every rank a `_Watched`."""
    made: list[_Watched] = []
    monkeypatch.setattr(session, "Watchdog", partial(_Watched, made))
    return made


def _train(folder: Path, *overrides: str, last: int | None = None, begun: Path | None = None) -> int:
    """Train; ``begun`` is the folder of a run that is resumed from its newest checkpoint."""
    recipe, cluster = load_both("digits", "laptop", [*SMALL, *overrides])
    if begun is None:
        folder.mkdir()
    else:
        shutil.copytree(begun, folder)
        RunFolder(folder).checkpoints.resume_from(RunFolder(folder).checkpoints.files()[0])
    (folder / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    signals = Signals(last)
    status = run(folder, ALONE, Ledger(), cast(Any, signals))
    assert signals.waits, "signals wait for the end of a step from the first step on"
    return status


def _train_once(factory: pytest.TempPathFactory, name: str, *overrides: str) -> Path:
    """Train for all tests of all processes, in which nobody writes into the folder that is returned."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "Watchdog", partial(_Watched, []))
            assert _train(folder / "run", *overrides) == 0

    return made_once(factory, name, make) / "run"


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run without further settings."""
    return _train_once(tmp_path_factory, "plain")


@pytest.fixture(scope="session")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that averages its weights."""
    return _train_once(tmp_path_factory, "averaged", *AVERAGE)


def _result(folder: Path) -> tuple[list[tuple[int, float]], dict[str, bytes]]:
    """Return the loss of each step, and the bits of the weights, the momenta and the statistics."""
    losses = [(row["step"], row["loss"]) for row in read_metrics(folder / METRICS_FILE) if row["kind"] == "interval"]
    return losses, {
        name: array.tobytes() for name, array in read(RunFolder(folder).checkpoints.files()[0]).arrays.items()
    }


MUON = ["optimizer={name: muon, weight_decay: 0.01}", "schedule.base_lr=0.05"]
LAMB = ["optimizer={name: lamb, clip_norm: 0.1}", "schedule.base_lr=0.01"]
MIXED = [
    "data.mixup_alpha=0.4", "data.cutmix_alpha=1", "data.random_erasing=0.5", "data.augmentation_repeats=2",
    "data.auto_augment=randaugment",
]  # fmt: skip
SHAMPOO = pytest.param(
    3,
    [
        "optimizer={name: shampoo, weight_decay: 0.01, root_every_steps: 4}", "schedule.base_lr=0.05",
        "cluster.engine.name=torch", "cluster.communication.kind=none", "cluster.ranks_per_node=1",
    ],
    marks=pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed"),
)  # fmt: skip
"""Is told to stop in its sixth step, between two times that it takes roots."""
AVERAGE = ["optimizer.average_half_life_steps=4", "optimizer.average_every_steps=3"]


@pytest.mark.medium
@pytest.mark.parametrize(("stop", "overrides"), [(5, [*AVERAGE, *MIXED]), (4, MUON), (5, LAMB), SHAMPOO])
def test_a_run_that_is_stopped_anywhere_and_resumed_ends_with_the_bits_and_the_metrics_of_one_in_one_go(
    tmp_path: Path, watchdogs: list[_Watched], stop: int, overrides: list[str]
) -> None:
    assert _train(tmp_path / "whole", *overrides) == 0
    cluster = load_cluster("laptop", [])
    assert watchdogs[0].told == [cluster.communication.timeout_s, cluster.watchdog_s, "rest"]
    whole, summary = _result(tmp_path / "whole"), RunFolder(tmp_path / "whole").summary()
    assert [step for step, _ in whole[0]] == [*range(8)]
    assert (summary.resumed_from_step, summary.changes, summary.is_rehearsal) == (None, None, False)
    newest = read(RunFolder(tmp_path / "whole").checkpoints.files()[0]).meta
    assert (newest["epoch"], newest["step"], newest["changes"]) == (3, 8, [])

    with pytest.raises(RunStopped) as stopped:
        _train(tmp_path / "begun", *overrides, last=2 * stop)
    again = tmp_path / "again"
    assert _train(again, *overrides, begun=tmp_path / "begun") == 0
    assert _result(again) == whole
    summary_again = RunFolder(again).summary()
    assert (summary_again.weights_checksum, summary_again.resumed_from_step) == (
        summary.weights_checksum, stopped.value.step,
    )  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(
    ("frozen", "overrides"),
    [
        ("backbone", [*AVERAGE, *MIXED]),
        pytest.param("stem, stage1, stage2", SHAMPOO.values[1], marks=SHAMPOO.marks),
    ],
)
def test_frozen_layers_keep_the_bits_they_began_with_through_a_stop_into_the_checkpoint_and_the_export(
    tmp_path: Path, plain: Path, frozen: str, overrides: list[str]
) -> None:
    given = [*overrides, *starting_weights(plain), "run.seed=2", f"model.frozen=[{frozen}]"]
    assert _train(tmp_path / "whole", *given) == 0
    ranks = load_both("digits", "laptop", [*SMALL, *overrides])[1].world_size
    with pytest.raises(RunStopped):
        _train(tmp_path / "begun", *given, last=5 * ranks)
    assert _train(tmp_path / "again", *given, begun=tmp_path / "begun") == 0
    assert _result(tmp_path / "again") == _result(tmp_path / "whole")
    run = ExportedRun.open(tmp_path / "whole")
    before, after = (
        evaluated_weights(read(RunFolder(each).checkpoints.files()[0])) for each in (plain, tmp_path / "whole")
    )
    assert before.keys() == after.keys()
    for name, array in before.items():
        is_frozen = not name.startswith(("stage3", "classifier") if "stem" in frozen else "classifier")
        assert (after[name].tobytes() == array.tobytes()) == is_frozen, name
    rows = read_metrics(tmp_path / "whole" / METRICS_FILE)
    evaluated = [row["eval_loss"] for row in rows if row["kind"] == "evaluation"][-1]
    for _, predict in export_network(run.recipe, run.cluster, run.checkpoint, tmp_path):
        assert evaluate(run.recipe, run.cluster, predict).row["eval_loss"] == pytest.approx(evaluated, rel=1e-4)


@pytest.mark.medium
def test_averages_of_weights_and_over_flips_are_evaluated_and_exported_and_change_no_training(
    tmp_path: Path, plain: Path, averaged: Path
) -> None:
    """The evaluation of 16 images has a loss that tells any two sets of weights apart."""
    found = {}
    assert _train(tmp_path / "flips", "data.eval_flip=true") == 0
    for name, folder in (("plain", plain), ("average", averaged), ("flips", tmp_path / "flips")):
        rows = read_metrics(folder / METRICS_FILE)
        run = ExportedRun.open(folder)
        evaluated = [row["eval_loss"] for row in rows if row["kind"] == "evaluation"][-1]
        for _, predict in export_network(run.recipe, run.cluster, run.checkpoint, tmp_path):
            loss = evaluate(run.recipe, run.cluster, predict).row["eval_loss"]
            assert loss == pytest.approx(evaluated, rel=1e-4)
        found[name] = evaluated, _result(folder)[0], RunFolder(folder).summary().weights_checksum
    for name in ("average", "flips"):
        assert found["plain"][1:] == found[name][1:]
        assert abs(found["plain"][0] - found[name][0]) > 0.01


@pytest.mark.medium
def test_the_best_evaluation_is_exported_also_of_a_run_that_was_stopped_and_averages_its_weights(
    tmp_path: Path,
) -> None:
    keys = ["cluster.checkpoint.best=true", "cluster.checkpoint.keep=1", *AVERAGE, "schedule.base_lr=2", "run.epochs=4"]
    assert _train(tmp_path / "whole", *keys) == 0
    with pytest.raises(RunStopped):
        _train(tmp_path / "begun", *keys, last=22)
    assert _train(tmp_path / "again", *keys, begun=tmp_path / "begun") == 0
    for name in ("whole", "again"):
        rows = [row for row in read_metrics(tmp_path / name / METRICS_FILE) if row["kind"] == "evaluation"]
        best = max(rows, key=lambda row: row["top1"])  # the first one
        assert best != rows[-1], "this test needs a run whose last evaluation is not the best one"
        found = RunFolder(tmp_path / name).summary().best
        step = 4 * best["epoch"]
        assert found == {
            "epoch": best["epoch"], "step": step, "top1": best["top1"], "checkpoint": f"best-step-{step:08d}.ckpt",
        }  # fmt: skip
        for is_last, row in ((False, best), (True, rows[-1])):
            run = ExportedRun.open(tmp_path / name, is_last=is_last)
            for _, predict in export_network(run.recipe, run.cluster, run.checkpoint, tmp_path):
                loss = evaluate(run.recipe, run.cluster, predict).row["eval_loss"]
                assert loss == pytest.approx(row["eval_loss"], rel=1e-4)


@pytest.mark.medium
def test_a_run_with_balanced_class_weights_has_the_bits_of_one_with_these_numbers(
    tmp_path: Path, shared_digits: Path
) -> None:
    counts = json.loads((shared_digits / "manifest.json").read_text(encoding="utf-8"))["train"]["class_counts"]
    numbers = [sum(counts) / (len(counts) * count) for count in counts]
    digits = "data={name: digits, source: digits, train_samples: 1198, eval_samples: 599, crop: {kind: none}}"
    settings = [digits, f"cluster.paths.data={shared_digits.parent}", "run.max_steps=2"]
    weights = []
    for name, given in (("words", "balanced"), ("numbers", numbers), ("none", None)):
        assert _train(tmp_path / name, *settings, f"loss.class_weights={json.dumps(given)}") == 0
        weights.append(RunFolder(tmp_path / name).summary().weights_checksum)
    assert weights[0] == weights[1] != weights[2]


STEP_PER_EPOCH = [
    "data={name: none, source: synthetic, train_samples: 16, eval_samples: 16, crop: {kind: none}}",
    "optimizer.average_half_life_steps=2", "run.epochs=6",
]  # fmt: skip
"""Six epochs of one step, each of which leaves a checkpoint."""


@pytest.mark.medium
def test_the_averages_of_two_ranks_are_those_of_the_states_after_each_step_and_a_new_run_begins_with_them(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    assert _train(folder, *STEP_PER_EPOCH) == 0
    sums: dict[str, np.ndarray] = {}
    count = 0.0  # a state counts 0.5^0.5 times as much as the next
    for path in reversed(RunFolder(folder).checkpoints.files()):
        arrays = read(path).arrays
        count = 0.5**0.5 * count + 1
        for name, each in arrays.items():
            kind, _, tensor = name.partition("/")
            if kind in ("weights", "statistics"):
                sums[tensor] = 0.5**0.5 * sums.get(tensor, 0) + each
        assert {f"evaluated/{each}" for each in sums} == {each for each in arrays if each.startswith("evaluated")}
        for tensor, each in sums.items():
            np.testing.assert_allclose(arrays[f"evaluated/{tensor}"], each / count, rtol=1e-5, atol=1e-6)
    ExportedRun.open(folder).onnx_export()
    for name, begin in (("from run", folder), ("from export", folder / "export")):
        assert _train(tmp_path / name, *starting_weights(begin)) == 0
    assert _result(tmp_path / "from run") == _result(tmp_path / "from export")


@pytest.mark.medium
def test_a_run_that_version_0_1_0_began_goes_on_with_averages_of_the_statistics_from_there(
    tmp_path: Path, averaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunStopped):
        _train(tmp_path / "begun", *AVERAGE, last=10)
    folder = RunFolder(tmp_path / "begun").checkpoints
    (path, *_), state = folder.files(), read(folder.files()[0])
    names = [each.removeprefix("weights/") for each in state.arrays if each.startswith("weights/")]
    first = sum(each.startswith("momenta/") for each in state.arrays)
    arrays = {name: each for name, each in state.arrays.items() if not name.startswith("evaluated/")}
    arrays |= {f"momenta/{first + number}": state.arrays[f"evaluated/{name}"] for number, name in enumerate(names)}
    folder.write(step_of(path), SavedState(state.meta, arrays), keep=9)
    assert _train(tmp_path / "again", *AVERAGE, begun=tmp_path / "begun") == 0
    (told,) = [each.getMessage() for each in caplog.records if "running statistics" in each.getMessage()]
    assert path.name in told
    whole, again = _result(averaged), _result(tmp_path / "again")
    assert {name for name in whole[1] if whole[1][name] != again[1][name]} == {
        name for name in whole[1] if name.startswith("evaluated/") and "_moving_" in name
    }


@pytest.mark.medium
def test_a_run_that_learns_nothing_ends_early_and_is_no_success(tmp_path: Path) -> None:
    long = [
        "run.epochs=60",
        "run.eval_every_epochs=10",
        "run.eval_first_epoch=10",
        "cluster.checkpoint.every_epochs=60",
    ]
    assert _train(tmp_path / "run", *long, "run.target_top1=0.99", "schedule.base_lr=1e-9") == 1
    summary = RunFolder(tmp_path / "run").summary()
    assert (summary.status, summary.epochs) == ("aborted", 50)
    assert (summary.failure or "").startswith("stuck at chance at step ")


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_keeps_the_folder_of_a_launcher_that_is_gone_and_leaves_it_to_who_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    monkeypatch.setattr("logs.claims.BEAT_S", 0.01)
    with subprocess.Popen(["sleep", "60"]) as launcher:
        RunFolder(tmp_path).claims.take(pid=launcher.pid)
        launcher.kill()
    recipe, cluster = load_both("digits", "laptop", SMALL)
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    left = queue.Queue[int]()
    monkeypatch.setattr(os, "_exit", left.put)

    def train_nothing(*_: object) -> int:
        assert (RunFolder(tmp_path).claims.holder() is not None) == (rank == 0)
        if rank == 0:
            (tmp_path / "claims" / "2.json").write_text("{}", encoding="utf-8")
            assert left.get(timeout=5) == 1
        return 7

    monkeypatch.setattr(session, "run_ranks_here", train_nothing)
    assert run(tmp_path, replace(ALONE, rank=rank), Ledger(), cast(Any, None)) == 7
    told = capsys.readouterr().err
    assert (told.startswith("error: ") and "taken over by an owner" in told) == (rank == 0)


@pytest.mark.medium
def test_a_rank_whose_servers_do_not_wait_ends_at_once_because_it_could_keep_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watchdogs: list[_Watched]
) -> None:
    monkeypatch.setattr(
        session, "run_ranks_here", lambda *parts: parts[3](*parts[1:3], lambda *_: SingleProcess())
    )  # as the only worker of a server
    recipe, cluster = load_both(
        "digits", "laptop",
        [*SMALL, "cluster.ranks_per_node=1", "cluster.communication.kind=parameter_server_async"],
    )  # fmt: skip
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    signals = Signals(None)
    assert run(tmp_path, ALONE, Ledger(), cast(Any, signals)) == 0
    assert not signals.waits, "a notice that waited for the end of a step would be noted and never heeded"
    assert [read(path).meta["step"] for path in RunFolder(tmp_path).checkpoints.files()] == [8], "the trained network"
    assert [each for each in watchdogs[0].steps if each is not None] == [*range(8)]
    assert watchdogs[0].steps.count(None) == 7, "two epochs and evaluations, a batch of each, and the trained network"


@pytest.mark.medium
def test_a_run_leaves_its_files_and_every_number_of_its_summary_in_its_column(tmp_path: Path) -> None:
    assert _train(tmp_path / "run", "cluster.engine.timing=true", "run.seed=7") == 0
    files = {
        name: json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("startup", "ranks", "usage")
    }
    assert files["startup"]["hosts"] == [ALONE.host] * 2
    assert files["startup"]["last"]["rank"] in (0, 1)
    phases = [row["phase"] for row in files["startup"]["phases"]]
    assert [name for name in phases if name in ("data set", WAITING, "warm-up", "compare weights")] == [
        "data set", WAITING, "warm-up", "compare weights",
    ]  # fmt: skip
    assert [row["rank"] for row in files["ranks"]["ranks"]] == [0, 1]
    assert len(files["usage"]["wall_s"]) == 2
    summary = RunFolder(tmp_path / "run").summary()
    assert summary.slowest_rank in (0, 1)
    assert summary.rank_excess is not None
    assert (summary.checkpoint_s or 0) > 0
    assert 0 < (summary.init_s or 0) < 60
    assert (summary.recipe, summary.status, summary.seed, summary.target) == ("digits", "success", 7, None)
    assert (summary.epochs, summary.steps, summary.world_size, summary.global_batch_size) == (2, 8, 2, 16)
    rows = read_metrics(tmp_path / "run" / METRICS_FILE)
    assert summary.top1 == [row["top1"] for row in rows if row["kind"] == "evaluation"][-1]
    assert 0 < 8 * 16 / (summary.images_per_s or 0) < (summary.run_s or 0), "which evaluations belong to, too"
    assert 0 <= (summary.input_wait_fraction or 0) < 1
    assert 0 < (summary.comm_exposed_fraction or 0) < 1
    assert 0 < (summary.run_s or 0) < 60
    assert len(summary.weights_checksum or "") == 16
