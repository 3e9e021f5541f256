"""Both sides of the race train the same recipe, and the figures of a run are those of its log."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_both
from tests.oracles import LarsOracle
from tests.runs import FinishedRun
from train.bench import bench_race
from train.bench.__main__ import main
from train.bench.bench_options import RACES
from train.bench.bench_peers import peers_python
from train.engine.init import initial_weights
from train.networks.arch import network_of

needs_torch = pytest.mark.skipif(
    not peers_python().exists(), reason="no PyTorch in .venv-peers: ./run.sh bench peers --install"
)


@pytest.mark.parametrize("name", RACES)
def test_the_peer_gets_every_number_of_the_recipe(name: str, tmp_path: Path) -> None:
    recipe, cluster = load_both(name, "laptop", ["run.seed=3"])
    told = json.loads(json.dumps(bench_race.peer_recipe(recipe, cluster, tmp_path / "weights.npz")))
    rates, warmup = [lr for lr, _ in told["rates"]], int(np.argmax([lr for lr, _ in told["rates"]])) + 1
    assert rates[0] == pytest.approx(recipe.schedule.base_lr / warmup)
    assert rates[-1] < 2e-3 * recipe.schedule.base_lr
    images = told["epoch_ends"][-1] * told["batch"] * 2
    assert images == pytest.approx(recipe.run.epochs * recipe.data.train_samples, abs=2 * told["batch"])
    assert (told["eval_epochs"][0], told["eval_epochs"][-1]) == (recipe.run.eval_first_epoch, recipe.run.epochs)
    assert told["optimizer"]["trust"]["trust_coefficient"] == recipe.optimizer.model_dump()["trust_coefficient"]
    assert len(told["mean"]) == told["network"]["input_channels"]
    first = initial_weights(network_of(recipe.model), recipe.model, 3)
    with np.load(told["weights"]) as numbered:
        for number, array in enumerate(first.values()):
            np.testing.assert_array_equal(numbered[str(number)], array)


@pytest.mark.parametrize("has_trust_ratio", [True, False])
def test_the_peers_update_equals_the_paper(has_trust_ratio: bool) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("PIL")
    from train.bench.programs.pytorch_race import MomentumUpdate

    random, rates = np.random.default_rng(5), [0.1, 0.3, 0.2]
    start = {kind: random.standard_normal(7) for kind in ("weight", "gamma")}
    gradients = {kind: [random.standard_normal(7) for _ in rates] for kind in start}
    weights = [torch.nn.Parameter(torch.tensor(each)) for each in start.values()]
    trust = {"trust_coefficient": 0.01, "epsilon": 1e-3, "trust_weight_decay": None, "skip_trust_ratio": ["gamma"]}
    update = MomentumUpdate(
        weights, [*start], momentum=0.9, skip_weight_decay=["gamma"], trust=trust if has_trust_ratio else None
    )
    for number, lr in enumerate(rates):
        for kind, weight in zip(start, weights, strict=True):
            weight.grad = torch.tensor(gradients[kind][number])
        update.step(lr, 0.2)
    for kind, weight in zip(start, weights, strict=True):
        decay, trusted = (0.2, has_trust_ratio) if kind == "weight" else (0.0, False)
        oracle = LarsOracle(0.9, decay, 0.01, 1e-3, decay, has_trust_ratio=trusted)
        expected = oracle.steps(start[kind], gradients[kind], rates)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-6)


@pytest.mark.ranks
def test_our_figures_are_those_of_the_runs_log(two_epoch_run: FinishedRun) -> None:
    lines = (two_epoch_run.folder / "result_0.txt").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line.partition(" ")[2]) for line in lines]
    at_s = {event["key"]: event["time_ms"] / 1000 for event in events}
    figures = bench_race._finished(two_epoch_run.folder, begin=at_s["init_start"])
    assert figures["to_target_s"] == pytest.approx(at_s["run_stop"] - at_s["init_start"])
    assert figures["startup_s"] == pytest.approx(at_s["run_start"] - at_s["init_start"])
    assert 0 < figures["startup_s"] < figures["to_target_s"]
    assert (figures["epochs"], figures["reached"]) == (2, 1)
    assert not bench_race._has_missed(two_epoch_run.folder)


def test_a_missed_target_is_an_answer_and_a_broken_run_is_none(tmp_path: Path) -> None:
    assert not bench_race._has_missed(tmp_path)
    for failure, is_answer in (("target top-1 0.97 not reached in 6 epochs: last 0.9", True), ("rank 1 died", False)):
        (tmp_path / "summary.json").write_text(json.dumps({"failure": failure}), encoding="utf-8")
        assert bench_race._has_missed(tmp_path) == is_answer


def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "race", "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "error: --seeds 0: allowed: a whole number above 0\n"


@pytest.mark.slow
@needs_torch
@pytest.mark.ranks
def test_both_sides_reach_the_target_of_the_digits(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert main(["bench", "race", "--quick", "--output", str(file)]) == 0
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    reached = {row["alternative"]: row["median"] for row in rows if row["figure"] == "reached"}
    assert reached == {"ours": 1, "PyTorch DDP": 1, "PyTorch DDP, channels last": 1}
