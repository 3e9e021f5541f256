"""The peer in a race: its update by hand, its first weights and numbers from the recipe, its images and its top-1."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from data.recordio import RecordWriter, pack_image
from tests.engines import ALONE
from train.bench.bench_race import peer_recipe
from train.bench.samples import read_samples
from train.engine.init import initial_weights
from train.networks.arch import network_of

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

SECOND = replace(ALONE, rank=1, world_size=2)


def _update(kinds: Sequence[str], weights: Sequence[Any], own_decay: float | None) -> Any:
    from train.bench.programs.pytorch_race import MomentumUpdate

    trust = {"trust_coefficient": 0.01, "epsilon": 1.0, "trust_weight_decay": own_decay, "skip_trust_ratio": ["gamma"]}
    return MomentumUpdate(weights, kinds, momentum=0.5, skip_weight_decay=["bias"], trust=trust)


@pytest.mark.parametrize(
    ("kind", "own_decay", "weight", "gradient", "ratio", "decay"),
    [
        ("weight", None, (3.0, 4.0), (0.0, 2.0), 0.05 / (2 + 0.1 * 5 + 1), 0.1),
        ("weight", 0.2, (3.0, 4.0), (0.0, 2.0), 0.05 / (2 + 0.2 * 5 + 1), 0.1),
        ("weight", 0.0, (3.0, 4.0), (0.0, 2.0), 0.05 / (2 + 1), 0.1),
        ("bias", 0.2, (3.0, 4.0), (0.0, 2.0), 0.05 / (2 + 1), 0.0),
        ("gamma", 0.2, (3.0, 4.0), (0.0, 2.0), 1.0, 0.1),
        ("weight", None, (0.0, 0.0), (0.0, 2.0), 1.0, 0.1),
        ("weight", None, (3.0, 4.0), (0.0, 0.0), 1.0, 0.1),
    ],
    ids=["decay", "decay of the ratio", "none in the ratio", "no decay", "no ratio", "no weight", "no gradient"],
)
def test_a_trust_ratio_is_that_of_the_paper(
    kind: str, own_decay: float | None, weight: tuple[float, ...], gradient: tuple[float, ...], ratio: float,
    decay: float,
) -> None:  # fmt: skip
    """The norms are 5 and 2: T = 0.01 * 5 / (2 + decay * 5 + 1), and the step is lr T (g + decay w)."""
    parameter = torch.nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
    _update([kind], [parameter], own_decay).step(0.4, 0.1)
    expected = [w - 0.4 * ratio * (g + decay * w) for w, g in zip(weight, gradient, strict=True)]
    assert parameter.detach().tolist() == pytest.approx(expected, rel=1e-12)


def test_each_weight_of_a_group_has_a_ratio_and_a_momentum_of_its_own() -> None:
    one, other = (torch.nn.Parameter(torch.tensor([each], dtype=torch.float64)) for each in (3.0, 8.0))
    one.grad, other.grad = (torch.tensor([each], dtype=torch.float64) for each in (2.0, 7.0))
    update = _update(["weight", "weight"], [one, other], None)
    update.step(1.0, 0.0)
    steps = 0.01 * 3 / (2 + 1) * 2, 0.01 * 8 / (7 + 1) * 7
    assert [one.item(), other.item()] == pytest.approx([3 - steps[0], 8 - steps[1]])
    update.step(0.0, 0.0)  # without a rate, half of the momentum is left
    assert [one.item(), other.item()] == pytest.approx([3 - 1.5 * steps[0], 8 - 1.5 * steps[1]])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Leave the process group and the images out, and return what of them a run asks for."""
    from train.bench.programs import pytorch_race

    asked: list[Any] = []

    def parallel(network: Any, **settings: Any) -> Any:
        asked.append(settings)
        return network

    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", parallel)
    monkeypatch.setattr(pytorch_race, "_decoded", lambda stem, _, identity: asked.append((stem, identity)))
    return asked


def _run(folder: Path, identity: Any, *sets: str) -> Any:
    from train.bench.programs.pytorch_race import _Run

    recipe, cluster = load_both("digits", "laptop", ["model.name=resnet8", *sets])
    told = json.loads(json.dumps(peer_recipe(recipe, cluster, folder / "weights.npz")))
    return _Run(told, identity, is_channels_last=True), told, recipe


def test_the_peer_begins_with_our_weights_loss_and_share_of_the_images(decoded: list[Any], tmp_path: Path) -> None:
    run, told, recipe = _run(tmp_path, SECOND, "loss.label_smoothing=0.21", "model.bn_momentum=0.7", "run.seed=3")
    weights = initial_weights(network_of(recipe.model), recipe.model, 3)
    found = list(run._network.parameters())
    assert len(found) == len(weights)
    for parameter, expected in zip(found, weights.values(), strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(), expected)
    assert run._loss_of.label_smoothing == 0.21
    norms = [part for part in run._network.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert [norm.momentum for norm in norms] == pytest.approx([0.3] * len(norms))
    settings, *shares = decoded
    assert settings["forward_sync_buffers"] is False, "they are averaged before an evaluation"
    assert shares == [(Path(told["data"]) / split, SECOND) for split in ("train", "eval")]


@pytest.mark.usefixtures("decoded")
def test_every_rank_and_every_seed_draws_an_order_of_its_own(tmp_path: Path) -> None:
    from train.bench.programs.pytorch_race import _Run

    first, told, _ = _run(tmp_path, ALONE, "run.seed=1")
    others = [_Run({**told, "seed": seed}, rank, is_channels_last=False) for seed, rank in ((1, SECOND), (2, ALONE))]
    orders = {tuple(torch.randperm(50, generator=each._random).tolist()) for each in (first, *others)}
    assert len(orders) == 3


@pytest.mark.usefixtures("decoded")
def test_the_recipe_says_which_kinds_decay_and_which_have_a_trust_ratio(tmp_path: Path) -> None:
    sets = ["optimizer.skip_weight_decay=[beta]", "optimizer.skip_trust_ratio=[gamma, beta]", "optimizer.momentum=0.6"]
    run, _, recipe = _run(tmp_path, ALONE, *sets)
    kinds = [each.kind for each in network_of(recipe.model).parameters]
    for parameter in run._network.parameters():
        parameter.grad = torch.ones_like(parameter)
    run._update.step(0.5, 0.2)
    steps = {kind: each for kind, each in zip(kinds, run._network.parameters(), strict=True) if kind != "weight"}
    # gamma begins at 1 and beta at 0: 1 - 0.5 (1 + 0.2), and 0 - 0.5; the second time, 0.6 of the momentum is added.
    assert steps["gamma"].detach().numpy() == pytest.approx(0.4)
    assert steps["beta"].detach().numpy() == pytest.approx(-0.5)
    run._update.step(0.0, 0.2)
    assert steps["beta"].detach().numpy() == pytest.approx(-0.8)


def test_top1_is_that_of_all_images_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.bench.programs.pytorch_race import _Run

    def with_another_rank(counts: Any) -> None:
        counts += torch.tensor([40, 100])

    monkeypatch.setattr("torch.distributed.all_reduce", with_another_rank)
    labels = torch.arange(300) % 5
    images = torch.nn.functional.one_hot(labels, 5).float()
    images[200:] = images[200:].roll(1, dims=1)  # more than a batch; the last hundred are taken for another class
    network = torch.nn.Flatten()
    run: Any = SimpleNamespace(_network=network, _normalized=lambda part: part, _evaluation=(images, labels))
    assert _Run._evaluate(run) == pytest.approx((200 + 40) / (300 + 100))
    assert not network.training


def test_grey_images_have_one_channel_and_are_resized_to_the_side_of_the_network(tmp_path: Path) -> None:
    from PIL import Image

    from train.bench.programs.pytorch_race import _decoded

    image, file = Image.new("RGB", (16, 16), (200, 200, 200)), io.BytesIO()
    image.paste((40, 40, 40), (0, 8, 8, 16))
    image.save(file, "JPEG", quality=100, subsampling=0)
    with RecordWriter(tmp_path / "eval.rec", tmp_path / "eval.idx") as records:
        for number in range(3):
            records.write(pack_image(number, number, file.getvalue()))
        records.finish()
    recipe = {"network": {"input_channels": 1, "image_size": 2}}
    images, labels = _decoded(tmp_path / "eval", recipe, ALONE)
    assert (images.shape, images.dtype, labels.tolist()) == ((3, 1, 2, 2), torch.uint8, [0, 1, 2])
    assert images[2].flatten().tolist() == pytest.approx([200, 200, 40, 200], abs=2)


def test_images_are_flipped_only_if_the_recipe_flips_and_lie_in_the_order_that_was_asked_for() -> None:
    from train.bench.programs.pytorch_race import _Run

    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).byte()
    recipe = {"flip": False, "mean": [0.0] * 3, "std": [1.0, 2.0, 4.0]}
    run: Any = SimpleNamespace(_recipe=recipe, _random=None, _order=torch.channels_last)
    assert torch.equal(_Run._augmented(run, images), images)
    normalized = _Run._normalized(run, images)
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(normalized, images / torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1, 1))


@pytest.mark.parametrize("words", [[], ["--channels-last"]])
def test_a_rank_meets_the_others_and_the_first_tells_of_the_race(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.bench.programs import pytorch_race

    told: list[Any] = []

    def run(recipe: Any, identity: Any, *, is_channels_last: bool) -> Any:
        told.append((recipe, identity.rank, is_channels_last))
        return SimpleNamespace(train=lambda: {"epochs": 7})

    monkeypatch.setattr(pytorch_race, "_Run", run)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda kind, **others: told.append((kind, others)))
    monkeypatch.setattr(pytorch_race, "read_identity", lambda _: replace(ALONE, world_size=2))
    (tmp_path / "recipe.json").write_text('{"seed": 3}', encoding="utf-8")
    pytorch_race.main([f"--recipe={tmp_path}/recipe.json", "--meeting-file=/tmp/meet", *words])
    place = {"init_method": "file:///tmp/meet", "rank": 0, "world_size": 2}
    assert told == [("gloo", place), ({"seed": 3}, 0, bool(words))]
    assert read_samples(capsys.readouterr().out) == {"PyTorch": [{"epochs": 7}]}
