"""Both sides of the race train the same recipe, and the figures of a run are those of its log."""

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from configs.schema import Cluster, Recipe
from data.recordio import RecordWriter, pack_image
from tests.engines import ALONE
from tests.oracles import LarsOracle
from tests.runs import FinishedRun
from train.bench import bench_race
from train.bench.__main__ import main
from train.bench.bench_options import RACES
from train.bench.bench_peers import peers_python
from train.bench.measure import MeasurementFailed
from train.engine.init import initial_weights
from train.networks.arch import Network, Rows, network_of

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


def test_the_peers_network_keeps_what_a_later_layer_reads_and_has_our_batch_norms() -> None:
    torch = pytest.importorskip("torch")
    from train.bench.programs.pytorch_network import TableNetwork

    rows = Rows(3, 8)
    rows.add("negated", "bn", "data")
    rows.add("cut", "relu", "negated")
    rows.add("sum", "add", "negated", "cut")
    network = TableNetwork(Network("small", 8, 3, 3, tuple(rows.layers)), bn_momentum=0.7, bn_epsilon=0.5).eval()
    (norm,) = (part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d))
    assert (norm.momentum, norm.eps) == (pytest.approx(0.3), 0.5)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    normed = images / 1.5**0.5
    assert torch.allclose(network(images), normed + normed.clamp(min=0))


def test_the_peer_decodes_its_share_flips_left_and_right_and_normalises(tmp_path: Path) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("PIL")
    from PIL import Image

    from train.bench.programs.pytorch_race import _decoded, _Run

    with RecordWriter(tmp_path / "train.rec", tmp_path / "train.idx") as records:
        for number in range(4):
            image, file = Image.new("RGB", (16, 16)), io.BytesIO()
            image.paste((250, 0, 0), (0, 0, 16, 8))  # the upper half
            image.paste((250, 0, 250), (0, 0, 8, 8))  # the left one of its quarters
            image.save(file, "JPEG", quality=100, subsampling=0)
            records.write(pack_image(5 + number, number, file.getvalue()))
        records.finish()
    recipe = {
        "network": {"input_channels": 3, "image_size": 16},
        "flip": True,
        "mean": [5.0, 0.0, 9.0],
        "std": [2.0] * 3,
    }
    images, labels = _decoded(tmp_path / "train", recipe, replace(ALONE, rank=1, world_size=2))
    assert labels.tolist() == [7, 8]
    quarters = images[0].float().unfold(1, 8, 8).unfold(2, 8, 8).mean(dim=(3, 4)) > 100
    assert quarters.tolist() == [[[True, True], [False, False]], [[False] * 2] * 2, [[True, False], [False, False]]]
    run: Any = SimpleNamespace(_recipe=recipe, _random=torch.Generator().manual_seed(1), _order=torch.contiguous_format)
    batch = images[:1].expand(64, -1, -1, -1)
    flips = [not torch.equal(each, images[0]) for each in _Run._augmented(run, batch)]
    assert 16 < sum(flips) < 48
    for each in _Run._augmented(run, batch):
        assert torch.equal(each, images[0]) or torch.equal(each, images[0].flip(2))
    mean = torch.tensor(recipe["mean"]).view(1, 3, 1, 1)
    assert torch.allclose(_Run._normalized(run, images), (images - mean) / 2)


def test_the_peer_evaluates_with_the_mean_of_the_ranks_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from train.bench.programs.pytorch_race import _Run

    def with_a_rank_of_sixes_and_zeros(flat: Any) -> None:
        if flat.is_floating_point():
            flat += torch.tensor([6.0] * 3 + [0.0] * 3)

    monkeypatch.setattr("torch.distributed.all_reduce", with_a_rank_of_sixes_and_zeros)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    norm = torch.nn.BatchNorm2d(3)
    network = torch.nn.Sequential(norm, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    images = torch.full((4, 3, 2, 2), 5.0)
    images[:, 1] = 7.0
    run: Any = SimpleNamespace(_network=network, _normalized=lambda part: part, _evaluation=(images, torch.ones(4)))
    assert _Run._evaluate(run) == 1
    assert norm.running_mean.tolist() == [3.0] * 3
    assert norm.running_var.tolist() == [0.5] * 3


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


@pytest.mark.parametrize("failure", ["target top-1 0.97 not reached in 6 epochs: last 0.9", "rank 1 died"])
def test_a_run_that_misses_the_target_has_figures_and_one_that_breaks_ends_the_bench(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str]) -> None:
        folder = Path(command[command.index("--run-dir") + 1])
        folder.mkdir()
        summary = {"status": "aborted", "failure": failure, "epochs": 6}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        at_ms = {"run_start": 1_700_000_003_000, "run_stop": 1_700_000_009_000}
        lines = [":::MLLOG " + json.dumps({"key": key, "time_ms": ms, "value": None}) for key, ms in at_ms.items()]
        (folder / "result_0.txt").write_text("\n".join(lines), encoding="utf-8")
        raise MeasurementFailed("exit status 1")

    monkeypatch.setattr(bench_race, "run", run)
    monkeypatch.setattr(bench_race, "time", SimpleNamespace(time=lambda: 1_700_000_000.0))
    if failure.startswith("rank"):
        with pytest.raises(MeasurementFailed):
            bench_race._ours("digits", 3)
    else:
        expected = {"to_target_s": 9.0, "startup_s": 3.0, "epochs": 6, "reached": 0.0}
        assert bench_race._ours("digits", 3) == expected


def test_images_that_nobody_has_packed_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_race, "resolve_path", lambda _: tmp_path)
    (tmp_path / "fashion-mnist").mkdir()  # as a preparation leaves it that was interrupted
    assert main(["bench", "race", "fashion-mnist"]) == 2
    assert f"error: {tmp_path / 'fashion-mnist'}: not packed yet; ./run.sh prepare" in capsys.readouterr().err


def test_the_peer_gets_what_differs_from_the_defaults(tmp_path: Path) -> None:
    sets = ["model.bn_epsilon=0.03", "model.bn_momentum=0.7", "loss.label_smoothing=0.21", "optimizer.momentum=0.6"]
    sets += ["data.std=[11.0, 12.0, 13.0]", "run.target_top1=0.77", "run.seed=9"]
    recipe, cluster = load_both("digits", "laptop", sets)
    told = bench_race.peer_recipe(recipe, cluster, tmp_path / "weights.npz")
    assert told["batch_norm"] == {"bn_momentum": 0.7, "bn_epsilon": 0.03}
    assert (told["label_smoothing"], told["target"], told["seed"]) == (0.21, 0.77, 9)
    assert told["optimizer"]["momentum"] == 0.6
    assert told["optimizer"]["skip_weight_decay"] == recipe.optimizer.model_dump()["skip_weight_decay"]
    channels = recipe.model.input_channels
    assert (list(told["mean"]), list(told["std"])) == (list(recipe.data.mean[:channels]), [11.0, 12.0, 13.0][:channels])
    assert told["flip"] is recipe.data.flip
    assert {decay for _, decay in told["rates"]} == {recipe.optimizer.weight_decay}


@pytest.mark.parametrize("kind", ["lars", "sgd"])
def test_the_peer_has_a_trust_ratio_where_ours_has_one(kind: str, tmp_path: Path) -> None:
    block = f"{{name: {kind}, momentum: 0.6, weight_decay: 0.02"
    block += ", trust_coefficient: 0.03, epsilon: 0.5, trust_weight_decay: 0.04, skip_trust_ratio: [beta]}"
    block = block if kind == "lars" else "{name: sgd, momentum: 0.6, weight_decay: 0.02}"
    sets = [f"optimizer={block}", "run.epochs=3", "run.eval_first_epoch=1", "run.eval_every_epochs=2"]
    recipe, cluster = load_both("digits", "laptop", sets)
    told = bench_race.peer_recipe(recipe, cluster, tmp_path / "weights.npz")
    trust = {"trust_coefficient": 0.03, "epsilon": 0.5, "trust_weight_decay": 0.04, "skip_trust_ratio": ["beta"]}
    found = json.loads(json.dumps(told["optimizer"]["trust"]))
    assert found == (trust if kind == "lars" else None)
    steps = told["epoch_ends"][0]
    assert list(told["epoch_ends"]) == [steps, 2 * steps, 3 * steps]
    assert len(told["rates"]) == 3 * steps
    assert list(told["eval_epochs"]) == [1, 3]


def test_each_round_of_the_peer_has_a_seed_of_its_own_and_its_programs_get_what_they_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []

    def peer_recipe(recipe: Recipe, _cluster: Cluster, weights: Path) -> dict[str, str]:
        seeds.append(recipe.run.seed)
        return {"weights": str(weights)}

    def run_ranks(program: list[str]) -> list[str]:
        (file,) = (Path(word.partition("=")[2]) for word in program if word.startswith("--recipe="))
        assert json.loads(file.read_text(encoding="utf-8")) == {"weights": str(file.parent / "weights.npz")}
        assert program[-1] == "--channels-last"
        return program

    answer = {"begun_at": 1e12, "ended_at": 2e12, "epochs": 3, "reached": 0}
    monkeypatch.setattr(bench_race, "peer_recipe", peer_recipe)
    monkeypatch.setattr(bench_race, "run_ranks", run_ranks)
    monkeypatch.setattr(bench_race, "read_samples", lambda _: {"peer": [answer]})
    missed: list[str] = []
    measure = bench_race._seeds("peer", partial(bench_race._pytorch, "digits", ("--channels-last",)), missed)
    found = [measure() for _ in range(3)]
    assert seeds == [1, 2, 3]
    assert [(each["epochs"], each["reached"]) for each in found] == [(3, 0)] * 3
    assert missed == [f"peer, seed {seed}: the target was not reached" for seed in (1, 2, 3)]


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
