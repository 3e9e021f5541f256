"""The peer on PyTorch begins as ours does, updates as the paper says, and ends where the target is reached."""

import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from configs.networks import NETWORKS
from data.recordio import pack_image, write_records
from tests.engines import ALONE, random_batch, small_network
from tests.oracles import LarsOracle
from train.bench.bench_peers import race_numbers
from train.engine.init import initial_weights
from train.networks.arch import network_of

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.medium  # an optimizer of PyTorch's imports its compiler

SECOND = replace(ALONE, rank=1, world_size=2)


# The network

_FAMILIES = ("resnet8", "resnet18", "resnet50", "alexnet", "googlenet", "densenet121", "mobilenet_v2",
             "mnist_small_cnn", "mnist_large_cnn")  # fmt: skip


@pytest.mark.parametrize("name", _FAMILIES)
def test_the_peer_computes_our_logits_from_our_weights_in_every_family(name: str) -> None:
    from train.bench.programs.pytorch import TableNetwork

    side = min(max(32, NETWORKS[name].smallest), NETWORKS[name].largest)
    shape = [f"model.name={name}", f"model.image_size={side}"]
    engine, recipe, ours = small_network("torch", *shape)
    table = network_of(recipe.model)
    peer = TableNetwork(table).eval()
    weights = initial_weights(table, recipe.model, seed=1)
    with torch.no_grad():
        for own, parameter in zip(peer.parameters(), table.parameters, strict=True):
            own.copy_(torch.from_numpy(weights[parameter.name]))
    images, _ = random_batch(engine, ours, size=2)
    expected = engine.to_host(ours.inference()(images))
    with torch.no_grad():
        found = peer(torch.from_numpy(engine.to_host(images))).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


# The update


@pytest.mark.parametrize(("has_trust_ratio", "own_decay"), [(True, None), (True, 0.5), (True, 0.0), (False, None)])
def test_several_updates_equal_the_paper(has_trust_ratio: bool, own_decay: float | None) -> None:
    from train.bench.programs.pytorch import make_update

    # PyTorch's own momentum, without trust ratios, has the rate of the last step only.
    random, rates = np.random.default_rng(5), [0.1, 0.3, 0.2] if has_trust_ratio else [0.2] * 3
    start = {kind: random.standard_normal(7) for kind in ("weight", "gamma", "bias")} | {"beta": np.zeros(7)}
    gradients = {kind: [random.standard_normal(7) for _ in rates] for kind in start}
    weights = [torch.nn.Parameter(torch.tensor(each)) for each in start.values()]
    trust = {"trust_coefficient": 0.01, "epsilon": 0.3, "trust_weight_decay": own_decay, "skip_trust_ratio": ["gamma"]}
    settings: dict[str, Any] = {"momentum": 0.9, "skip_weight_decay": ["bias"]}
    update = make_update(weights, [*start], trust=trust if has_trust_ratio else None, **settings)
    for number, lr in enumerate(rates):
        for kind, weight in zip(start, weights, strict=True):
            weight.grad = torch.tensor(gradients[kind][number])
        update(lr, 0.2)
    for kind, weight in zip(start, weights, strict=True):
        decay = 0.0 if kind == "bias" else 0.2
        ratio_decay = 0.0 if kind == "bias" else 0.2 if own_decay is None else own_decay
        trusted = has_trust_ratio and kind != "gamma"
        oracle = LarsOracle(0.9, decay, 0.01, 0.3, ratio_decay, has_trust_ratio=trusted)
        expected = oracle.steps(start[kind], gradients[kind], rates)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-6)


# The numbers of a recipe


def _numbers(folder: Path, *sets: str) -> tuple[Any, Any, Any]:
    """Return a race's values after a way through JSON, the arrays beside them, and the recipe."""
    recipe, cluster = load_both("digits", "laptop", sets)
    race = json.loads(json.dumps(race_numbers(recipe, cluster, folder / "numbers.npz")))
    with np.load(race["numbers"]) as arrays:
        return race, dict(arrays), recipe


@pytest.mark.parametrize("kind", ["lars", "sgd"])
def test_the_peer_gets_the_rates_trust_ratio_sizes_and_evaluations_of_the_recipe(kind: str, tmp_path: Path) -> None:
    trust = {"trust_coefficient": 0.03, "epsilon": 0.5, "trust_weight_decay": 0.04, "skip_trust_ratio": ["beta"]}
    block = {"name": kind, "momentum": 0.6, "weight_decay": 0.02, **(trust if kind == "lars" else {})}
    growing = "data.progressive_resizing={initial_size: 8, size_step: 8, ramp_start_share: 0.5, ramp_end_share: 0.75}"
    epochs = ["run.epochs=4", "run.eval_first_epoch=1", "run.eval_every_epochs=2", "model.image_size=16", growing]
    race, arrays, recipe = _numbers(tmp_path, f"optimizer={json.dumps(block)}", *epochs)
    assert race["optimizer"]["trust"] == (trust if kind == "lars" else None)
    steps = recipe.data.train_samples / (2 * race["batch_size"])
    assert race["epoch_ends"] == [math.ceil(epoch * steps) for epoch in range(1, 5)]
    rates, base_lr = arrays["lr"], recipe.schedule.base_lr
    warmup = int(np.argmax(rates)) + 1
    assert len(rates) == race["epoch_ends"][-1]
    assert (rates[0], rates[warmup - 1]) == pytest.approx((base_lr / warmup, base_lr))
    assert rates[-1] < 2e-3 * base_lr
    assert (race["eval_epochs"], race["image_sizes"]) == ([1, 3, 4], [8, 8, 16, 16])


# The race


def _write(stem: Path, *images: Any) -> None:
    files = [io.BytesIO() for _ in images]
    for image, file in zip(images, files, strict=True):
        image.save(file, "JPEG", quality=100, subsampling=0)
    write_records(stem, (pack_image(number, number, file.getvalue()) for number, file in enumerate(files)))


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process group out: gradients stay those of the rank, and sums are those of two equal ranks."""
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", lambda network, **_: network)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda values: values.mul_(2))
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)


def _race(folder: Path, identity: Any = ALONE, *sets: str, is_channels_last: bool = False, **changes: Any) -> Any:
    """Return a race on 10 images of 8 px for training and 4 for evaluation, of grey in four levels."""
    from train.bench.programs.pytorch import Form, Race

    folder.mkdir(exist_ok=True)
    small = ["model.name=resnet8", *(sets or ["run.seed=3"])]
    race, _, _ = _numbers(folder, *small)
    greys = [Image.new("RGB", (8, 8), (60 * (number % 4) + 10,) * 3) for number in range(10)]
    _write(folder / "train", *greys)
    _write(folder / "eval", *greys[:4])
    return Race({**race, "data": str(folder), **changes}, identity, Form(is_channels_last=is_channels_last))


@pytest.mark.usefixtures("_alone")
def test_the_peer_begins_with_our_weights_loss_and_share_of_the_images(tmp_path: Path) -> None:
    own = ["loss.label_smoothing=0.21", "model.bn_momentum=0.7", "model.bn_epsilon=0.03", "run.seed=3"]
    run = _race(tmp_path, SECOND, *own)
    recipe, _ = load_both("digits", "laptop", ["model.name=resnet8", "run.seed=3"])
    weights = initial_weights(network_of(recipe.model), recipe.model, 3).values()
    for parameter, expected in zip(run.network.parameters(), weights, strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(), expected)
    assert run.loss_of.label_smoothing == 0.21
    # PyTorch's momentum is the share that the batch has.
    assert run.network.norm == pytest.approx({"momentum": 0.3, "eps": 0.03})
    assert (run.training[1].tolist(), run.evaluation[1].tolist()) == ([5, 6, 7, 8, 9], [2, 3])


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("flip", [True, False])
def test_every_pass_has_all_images_in_a_new_order_with_their_labels_and_flips(flip: bool, tmp_path: Path) -> None:
    row = torch.arange(10)[:, None] + torch.tensor([0, 100])  # of each image, two pixels that tell its number
    changes: dict[str, Any] = {"mean": [5.0] * 3, "std": [2.0] * 3, "batch_size": 4, "flip": flip}
    orders = set()
    for seed, rank in ((1, ALONE), (1, SECOND), (2, ALONE)):
        run = _race(tmp_path / f"{seed}-{rank.rank}", rank, is_channels_last=True, seed=seed, **changes)
        run.training = row.view(10, 1, 1, 2).expand(10, 3, 1, 2).byte(), torch.arange(10) + 10
        batches = list(itertools.islice(run.batches(), 10))
        orders.add(tuple(torch.cat([each for _, each in batches]).tolist()))
    assert len(orders) == 3, "every rank and every seed draws an order of its own"
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in batches)
    labels = torch.cat([each for _, each in batches]) - 10
    pixels = torch.cat([images for images, _ in batches])[:, 1, 0] * 2 + 5
    assert torch.allclose(pixels.sort(dim=1).values, row[labels].float(), atol=1e-3), "an image keeps its label"
    flips = int((pixels[:, 0] > pixels[:, 1]).sum())
    assert 8 < flips < 32 if flip else flips == 0
    passes = labels.view(4, 10).tolist()
    assert [sorted(each) for each in passes] == [[*range(10)]] * 4
    assert len({tuple(each) for each in passes}) > 1


@pytest.mark.usefixtures("_alone")
def test_top1_is_that_of_all_images_of_all_ranks_with_the_mean_of_the_ranks_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_rank(values: Any) -> None:
        values += torch.tensor([6.0] * 3 + [0.0] * 3) if values.is_floating_point() else torch.tensor([40, 100])

    run = _race(tmp_path, mean=[0.0] * 3, std=[1.0] * 3)
    monkeypatch.setattr("torch.distributed.all_reduce", with_another_rank)
    norm = torch.nn.BatchNorm2d(3)
    run.network = torch.nn.Sequential(norm, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    labels = torch.arange(300) % 3
    images = torch.nn.functional.one_hot(labels, 3).view(300, 3, 1, 1).byte() * 100
    images[200:] = images[200:].roll(1, dims=1)  # more than a batch; the last hundred are taken for another class
    run.evaluation = images, labels
    assert run.evaluate() == pytest.approx((200 + 40) / (300 + 100))
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([3.0] * 3, [0.5] * 3)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("scores", "epochs", "reached", "steps"), [([0.75], 2, 1.0, 3), ([0.5, 0.74], 3, 0.0, 4)], ids=["reached", "missed"]
)
def test_the_race_ends_with_the_evaluation_that_reaches_the_target_or_the_last_epoch(
    scores: list[float], epochs: int, reached: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.bench.programs import pytorch

    run = _race(tmp_path, epoch_ends=[1, 3, 4], eval_epochs=[2, 3], target=0.75, batch_size=5, image_sizes=[4, 8, 8])
    sides: list[int] = []
    run.network.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    rates: list[tuple[float, float]] = []
    modes: list[bool] = []
    top1 = iter(scores)

    def evaluate() -> float:
        run.network.eval()
        return next(top1)

    def step(lr: float, weight_decay: float) -> None:
        modes.append(run.network.training)
        assert all(parameter.grad is not None for parameter in run.network.parameters())
        rates.append((lr, weight_decay))

    moments = iter([100.0, 110.0, 130.0])
    monkeypatch.setattr(pytorch, "time", SimpleNamespace(time=lambda: next(moments)))
    run.evaluate, run.update = evaluate, step
    found = run.train()
    times = {"begun_at": 100.0, "warm_at": 110.0, "ended_at": 130.0}
    assert found == {**times, "epochs": epochs, "steps": steps, "top1": scores[-1], "reached": reached}
    _, arrays, _ = _numbers(tmp_path, "model.name=resnet8", "run.seed=3")
    assert rates == list(zip(arrays["lr"][:steps], arrays["weight_decay"][:steps], strict=True))
    assert sides == [4, 8, 8, 8][:steps]
    assert all(modes), "an evaluation does not last into the next epoch"


@pytest.mark.usefixtures("_alone")
def test_images_that_the_recipe_crops_come_from_a_loader_with_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    run = _race(tmp_path, is_cropped=True, batch_size=2, mean=[10.0] * 3, std=[60.0] * 3)
    batches = list(itertools.islice(run.batches(), 4))
    for images, labels in batches:
        assert images.shape == (2, 3, 8, 8)
        # An image of one grey keeps it, whatever is cropped of it.
        expected = (labels % 4).float().view(2, 1, 1, 1).expand_as(images)
        assert torch.allclose(images, expected, atol=0.05)
    assert len({*torch.cat([labels for _, labels in batches[:2]]).tolist()}) == 4, "an image comes once a pass"
