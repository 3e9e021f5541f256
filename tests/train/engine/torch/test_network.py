"""The network agrees with its table, with NumPy's forward pass, in every layout and type."""

import itertools
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from tests.engines import ALONE, check_statistics_are_restored, forward_backward
from tests.forward import Forward, resnet8
from tests.oracles import smoothed_cross_entropy
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts
from train.engine.init import checksum, initial_weights
from train.engine.protocol import Engine, open_engine
from train.networks.arch import build_network
from train.networks.table import Layer, Network
from train.schedule import HyperParameters
from train.warmup import warm_up

torch = pytest.importorskip("torch")

SMALL = ("model.name=resnet8", "model.image_size=16", "data.crop={kind: none}", "data.flip=false")
BATCH = 8


def opened(*overrides: str, accumulate: bool = False) -> tuple[Engine, Any, Any]:
    """Give engine, recipe and a network with seeded weights."""
    recipe, cluster = load_both("digits", "laptop", ["cluster.engine.name=torch", *SMALL, *overrides])
    engine, model = open_engine(cluster, ALONE), recipe.model
    table = build_network(model.name, num_classes=10, image_size=model.image_size, input_channels=3)
    network = engine.build_network(table, recipe, accumulate=accumulate)
    network.load_weights(initial_weights(table, model, seed=1))
    return engine, recipe, network


def batch(engine: Engine, network: Any, size: int = BATCH, seed: int = 0) -> tuple[Any, Any]:
    """Give random images in the network's layout, and labels."""
    random = np.random.default_rng(seed)
    images = random.standard_normal((size, 3, 16, 16), np.float32)
    if network.image_shape[-1] == 3:
        images = images.transpose(0, 2, 3, 1)
    return engine.from_host(images), engine.from_host(random.integers(0, 10, size).astype(np.float32))


def test_loaded_weights_reach_the_masters_and_the_copies_that_compute() -> None:
    _, recipe, network = opened("cluster.engine.precision=bfloat16")
    table = build_network("resnet8", num_classes=10, image_size=16, input_channels=3)
    network.load_weights(initial_weights(table, recipe.model, seed=2))
    pairs = [(weight, master) for weight, master in zip(network.weights, network.masters, strict=True)]
    assert {weight.dtype for weight, _ in pairs} > {torch.float32}
    assert all(torch.equal(weight, master.to(weight.dtype)) for weight, master in pairs)
    first = initial_weights(table, recipe.model, seed=2)[network.parameters[0].name]
    assert np.array_equal(network.read_weights()[network.parameters[0].name], first)


def test_statistics_come_back_as_they_were_given_and_begin_anew_without() -> None:
    check_statistics_are_restored(opened()[2])


def test_loss_and_running_statistics_are_those_of_numpys_forward_pass() -> None:
    engine, recipe, network = opened("model.bn_momentum=0.75", "model.bn_epsilon=0.01")
    images, labels = batch(engine, network)
    forward = Forward(network.read_weights(), epsilon=recipe.model.bn_epsilon, is_training=True)
    logits = resnet8(forward, images.numpy())
    expected = smoothed_cross_entropy(logits, labels.numpy().astype(int), 0.1, "uniform")
    loss = engine.to_number(forward_backward(network, images, labels))
    assert loss == pytest.approx(expected.sum(), rel=1e-5)
    statistics = network.read_statistics()
    for name, (mean, variance) in forward.batch_statistics.items():
        # The variance of the batch itself: an estimate for all images would be 1.6 % larger in the last stage.
        np.testing.assert_allclose(statistics[f"{name}_moving_mean"], 0.25 * mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(statistics[f"{name}_moving_var"], 0.75 + 0.25 * variance, rtol=1e-4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("precision", "accumulate"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_gradients_of_one_type_are_neighbours_in_memory_last_layer_first(
    precision: str, layout: str, accumulate: bool
) -> None:
    settings = f"cluster.engine.precision={precision}", f"cluster.engine.layout={layout}"
    _, _, network = opened(*settings, accumulate=accumulate)
    assert network.image_shape == ((16, 16, 3) if layout == "NHWC" else (3, 16, 16))
    places: dict[Any, list[tuple[int, int]]] = {}
    for parameter, gradient in zip(network.parameters, network.gradients, strict=True):
        is_half = precision == "bfloat16" and not accumulate and parameter.kind not in ("gamma", "beta")
        assert gradient.dtype == (torch.bfloat16 if is_half else torch.float32), parameter.name
        assert tuple(gradient.shape) == parameter.shape
        places.setdefault(gradient.dtype, []).append((gradient.data_ptr(), gradient.numel() * gradient.element_size()))
    for pieces in places.values():
        for (first, _), (second, size) in itertools.pairwise(pieces):
            assert second + size == first, "the next layer's gradient lies just before"


@pytest.mark.parametrize("accumulate", [False, True])
def test_every_gradient_arrives_once_and_complete(accumulate: bool) -> None:
    engine, _, network = opened(accumulate=accumulate)
    network.zero_gradients()
    network.forward(*batch(engine, network))
    arrived: dict[int, Any] = {}

    def arrive(index: int) -> None:
        assert index not in arrived
        arrived[index] = network.gradients[index].clone()

    network.backward(arrive)
    assert sorted(arrived) == list(range(len(network.parameters)))
    assert next(iter(arrived)) > list(arrived)[-1] == 0, "the last layer's first"
    assert all(torch.equal(arrived[index], gradient) for index, gradient in enumerate(network.gradients))


def test_parameters_that_get_no_gradient_arrive_too_the_last_layers_first() -> None:
    engine, _, network = opened()
    unused = {name: network._leaves[name] for name in ("stem_bn_gamma", "stem_bn_beta")}
    for name, leaf in unused.items():
        network._leaves[name] = leaf.detach().requires_grad_()
    network.gradients[2].fill_(7)
    network.forward(*batch(engine, network))
    arrived: list[int] = []
    network.backward(arrived.append)
    assert all(leaf.grad is None for leaf in unused.values())
    assert sorted(arrived) == list(range(len(network.parameters)))
    assert arrived[-2:] == [2, 1]
    assert not network.gradients[2].any()


def test_gradients_are_sums_over_images_and_accumulate_in_float32() -> None:
    engine, _, apart = opened("cluster.engine.precision=bfloat16")
    _, _, together = opened("cluster.engine.precision=bfloat16", accumulate=True)
    halves = [batch(engine, apart, seed=seed) for seed in (1, 2)]
    together.zero_gradients()
    summed: Any = 0
    for images, labels in halves:
        forward_backward(together, images, labels)
        forward_backward(apart, images, labels)
        summed = summed + apart.gradients[0].float()
    assert together.gradients[0].dtype == torch.float32
    np.testing.assert_allclose(together.gradients[0].numpy(), summed.numpy(), rtol=1e-6, atol=1e-6)


def test_gradients_of_one_type_are_neighbours_last_layer_first() -> None:
    _, _, network = opened("cluster.engine.layout=NHWC")
    last_first = network.gradients[::-1]
    ends = [each.data_ptr() + each.numel() * each.element_size() for each in last_first]
    assert [each.data_ptr() for each in last_first[1:]] == ends[:-1]


def test_both_layouts_give_the_same_gradients_and_weights() -> None:
    results = []
    for layout in ("NCHW", "NHWC"):
        engine, _, network = opened(f"cluster.engine.layout={layout}")
        images, labels = batch(engine, network)
        loss = engine.to_number(forward_backward(network, images, labels))
        logits = engine.to_host(network.inference()(images))
        results.append((loss, logits, [each.numpy() for each in network.gradients], checksum(network.each_weight())))
    (loss, logits, gradients, digest), (other_loss, other_logits, other_gradients, other_digest) = results
    assert digest == other_digest
    assert loss == pytest.approx(other_loss, rel=1e-5)
    np.testing.assert_allclose(logits, other_logits, rtol=1e-4, atol=1e-5)
    for one, other in zip(gradients, other_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * float(np.abs(one).max()) + 1e-6)


def test_nhwc_images_are_not_copied() -> None:
    engine, _, network = opened("cluster.engine.layout=NHWC")
    images, _ = batch(engine, network)
    assert network._channels_first(images).data_ptr() == images.data_ptr()
    assert network._channels_first(images).is_contiguous(memory_format=torch.channels_last)


def test_bfloat16_keeps_float32_masters_and_batch_norm_and_comes_near_float32() -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        engine, _, network = opened(f"cluster.engine.precision={precision}")
        losses.append(engine.to_number(forward_backward(network, *batch(engine, network))))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    kinds = {each.kind: weight.dtype for each, weight in zip(network.parameters, network.weights, strict=True)}
    half, whole = torch.bfloat16, torch.float32
    assert kinds == {"weight": half, "bias": half, "gamma": whole, "beta": whole}
    assert all(master.dtype == whole for master in network.masters)
    own = [weight is master for weight, master in zip(network.weights, network.masters, strict=True)]
    assert own == [each.kind in ("gamma", "beta") for each in network.parameters]


def test_weights_come_back_as_they_were_given_and_belong_to_the_caller() -> None:
    _, recipe, network = opened()
    given = initial_weights(network.network, recipe.model, seed=1)
    read = network.read_weights()
    assert checksum(read.items()) == checksum(given.items())
    read["stem_weight"][:] = 0
    assert checksum(network.each_weight()) == checksum(given.items())


@pytest.mark.parametrize("optimizer", ["lars", "adam"])
def test_a_warm_up_is_undone_bit_for_bit(optimizer: str) -> None:
    def first_steps(*, warm: bool) -> tuple[int, bytes]:
        engine, recipe, network = opened(f"optimizer={{name: {optimizer}, weight_decay: 1e-4}}")
        built = engine.build_optimizer(recipe.optimizer, network, rescale=1 / BATCH, arrivals=[0] * 29)
        if warm:
            weights = initial_weights(network.network, recipe.model, seed=1)
            buckets = BucketPlan(((0,), (1,)))
            warm_up(engine, ModelParts(network, built, weights, buckets), SingleProcess(), BATCH)
        for seed in (1, 2, 3):
            forward_backward(network, *batch(engine, network, seed=seed))
            built.update(HyperParameters(0.1, 0.9, 1e-4, seed - 1))
        return checksum(network.each_weight()), b"".join(each.numpy().tobytes() for each in network.statistics)

    assert first_steps(warm=True) == first_steps(warm=False)


@pytest.mark.medium
def test_dropout_is_seeded_whatever_the_threads_and_keeps_the_mean() -> None:
    _, _, network = opened("model.name=alexnet", "model.image_size=63")
    row = next(layer for layer in network.network.layers if layer.kind == "dropout")
    values = torch.ones(400, 500)
    dropped = []
    threads = torch.get_num_threads()
    for seed, count in ((1, 1), (1, 2), (2, 1)):
        torch.set_num_threads(count)
        network.seed_dropout(seed)
        dropped.append(network._drop(row, values))
    torch.set_num_threads(threads)
    assert torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0], dropped[2])
    assert set(dropped[0].unique().tolist()) == {0.0, 1 / (1 - row.rate)}
    assert dropped[0].mean().item() == pytest.approx(1, abs=0.01)


def test_an_addition_keeps_an_input_that_another_layer_reads() -> None:
    from train.engine.torch.layers import Layers, no_dropout

    rows = (
        Layer("left", "relu", ("data",), 3, 3, 4, 4), Layer("sum", "add", ("left", "data"), 3, 3, 4, 4),
        Layer("both", "concat", ("sum", "left"), 6, 6, 4, 4),
    )  # fmt: skip
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    given, left = images.clone(), images.relu()
    found = Layers(Network("three", 4, 3, 10, rows), normalise=no_dropout)(images, {})
    assert torch.equal(found, torch.cat([left + given, left], dim=1))
    assert torch.equal(images, given)


def test_a_layer_of_dropout_drops_in_training() -> None:
    _, _, network = opened()
    row = Layer("drop", "dropout", ("data",), 4, 4, 8, 8, rate=0.5)
    network.seed_dropout(3)
    values = network._layers._output(row, [torch.ones(2, 4, 8, 8)], {})
    assert 0.2 < float((values == 0).float().mean()) < 0.8
