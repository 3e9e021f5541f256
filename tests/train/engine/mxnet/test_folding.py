"""Inference with folded batch norm equals inference with batch norm, on every network."""

import mxnet as mx
import numpy as np
import pytest

from configs.networks import IMAGE_SIZES
from configs.schema import EngineSettings, Loss, Model, Sgd
from tests.engines import forward_backward
from train.engine.init import initial_weights
from train.engine.mxnet.folding import folded_symbol
from train.engine.mxnet.host_momentum import HostMomentum
from train.engine.mxnet.network import TrainedNetwork
from train.networks.arch import Network, build_network
from train.networks.table import Rows
from train.schedule import HyperParameters

SIZES = {"densenet121": 64, "alexnet": 63, "googlenet": 64}


def _network(name: str) -> tuple[TrainedNetwork, Model]:
    """A network with random statistics and batch-norm parameters, near those of a trained one."""
    size = SIZES.get(name, min(max(IMAGE_SIZES[name][0], 32), IMAGE_SIZES[name][1]))
    model = Model(name=name, num_classes=10, image_size=size, bn_epsilon=1e-3)
    table = build_network(name, num_classes=10, image_size=size, input_channels=3)
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    _load(network, table, model, seed=1)
    return network, model


def _load(network: TrainedNetwork, table: Network, model: Model, seed: int) -> None:
    draw = np.random.default_rng(seed)
    weights = initial_weights(table, model, seed)
    for name, array in weights.items():
        if name.endswith("_gamma"):
            weights[name] = draw.uniform(0.5, 1.5, array.shape).astype(np.float32)
        elif name.endswith(("_beta", "_bias")):
            weights[name] = draw.normal(0, 0.3, array.shape).astype(np.float32)
    for layer in table.layers:
        if layer.kind == "bn":
            weights[f"{layer.name}_moving_mean"] = draw.normal(0, 0.3, layer.out_channels).astype(np.float32)
            weights[f"{layer.name}_moving_var"] = draw.uniform(0.5, 2.0, layer.out_channels).astype(np.float32)
    network.load_weights(weights)


def _images(model: Model) -> mx.nd.NDArray:
    shape = (2, 3, model.image_size, model.image_size)
    return mx.nd.array(np.random.default_rng(9).standard_normal(shape, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "densenet121", "alexnet", "googlenet"])
def test_folded_logits_equal_those_with_batch_norm(name: str) -> None:
    network, model = _network(name)
    images = _images(model)
    expected = network.unfolded_inference()(images).asnumpy()
    assert expected.std() > 0
    np.testing.assert_allclose(network.inference()(images).asnumpy(), expected, rtol=1e-4, atol=1e-5 * expected.std())


@pytest.mark.parametrize("has_norm_before", [False, True])
def test_a_convolution_with_a_bias_is_folded_too_and_a_batch_norm_without_one_is_scale_and_shift(
    has_norm_before: bool,
) -> None:
    rows = Rows(3, 32)
    last = rows.add("before", "bn", "data") if has_norm_before else "data"
    last = rows.add("stem", "conv", last, out_channels=4, kernel=3, has_bias=True)
    last = rows.add("stem_relu", "relu", rows.add("stem_bn", "bn", last))
    rows.dense("classifier", rows.add("pool", "global_pool", last), 10)
    table, model = Network("made", 32, 3, 10, tuple(rows.layers)), Model(name="resnet8", num_classes=10, image_size=32)
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    _load(network, table, model, seed=1)
    images = _images(model)
    expected = network.unfolded_inference()(images).asnumpy()
    np.testing.assert_allclose(network.inference()(images).asnumpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IMAGE_SIZES)
def test_no_network_has_a_batch_norm_left(name: str) -> None:
    size = IMAGE_SIZES[name][0]
    table = build_network(name, num_classes=10, image_size=size, input_channels=3)
    model = Model(name=name, num_classes=10, image_size=size)
    for is_depthwise in (False, True):
        assert "BatchNorm" not in folded_symbol(table, model, EngineSettings(), is_depthwise=is_depthwise).tojson()


def test_the_two_ways_of_a_batch_norm_that_is_not_folded_agree() -> None:
    rows = Rows(3, 16)
    last = rows.add("pool", "global_pool", rows.add("first_relu", "relu", rows.add("first_bn", "bn", "data")))
    rows.dense("classifier", last, 10)
    table, model = Network("made", 16, 3, 10, tuple(rows.layers)), Model(name="resnet8", num_classes=10, image_size=16)
    found = []
    for layout in ("NCHW", "NHWC"):
        engine = EngineSettings(layout=layout)
        network = TrainedNetwork(table, model=model, loss=Loss(), engine=engine, context=mx.cpu(), accumulate=False)
        _load(network, table, model, seed=1)
        images = _images(model)
        found.append(network.inference()(images if layout == "NCHW" else images.transpose((0, 2, 3, 1))).asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_weights_and_statistics_that_changed_are_folded_anew() -> None:
    network, model = _network("resnet8")
    images = _images(model)
    first = network.inference()(images).asnumpy()
    _load(network, network.network, model, seed=2)
    second = network.inference()(images).asnumpy()
    assert np.abs(second - first).max() > 0.1
    np.testing.assert_allclose(second, network.unfolded_inference()(images).asnumpy(), rtol=1e-4, atol=1e-5)


def test_training_after_an_evaluation_takes_the_same_steps() -> None:
    images, labels = mx.nd.ones((4, 3, 32, 32)), mx.nd.array([0, 1, 2, 3])

    def gradients(*, evaluates: bool) -> bytes:
        network, _ = _network("resnet8")
        if evaluates:
            network.inference()(images).wait_to_read()
        forward_backward(network, images, labels)
        return b"".join(each.asnumpy().tobytes() for each in network.gradients)

    assert gradients(evaluates=True) == gradients(evaluates=False)


@pytest.mark.medium
@pytest.mark.parametrize("way", ["inference", "unfolded_inference"])
def test_weights_that_an_inference_reordered_are_updated(way: str) -> None:
    table = build_network("mnist_large_cnn", num_classes=10, image_size=28)
    model = Model(name="mnist_large_cnn", num_classes=10, image_size=28)
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    _load(network, table, model, seed=1)
    optimizer = HostMomentum(
        Sgd(name="sgd", momentum=0.0, weight_decay=0.0), network.parameters, weights=network.weights,
        gradients=network.gradients, rescale=1.0,
    )  # fmt: skip
    images, labels = mx.nd.ones((8, 3, 28, 28)), mx.nd.zeros((8,))
    for _ in range(2):
        before = network.read_weights()
        getattr(network, way)()(images).wait_to_read()  # which reorders the weights
        forward_backward(network, images, labels)
        optimizer.update(
            HyperParameters(0.1, 0.0, 0.0)
        )  # before anything reads the gradients, which would reorder them
        after = network.read_weights()
        for each, gradient in zip(network.parameters, network.gradients, strict=True):
            expected = before[each.name] - 0.1 * gradient.asnumpy()
            np.testing.assert_allclose(after[each.name], expected, rtol=1e-5, atol=1e-6)
