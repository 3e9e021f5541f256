"""ResNet-50, a small ResNet and GoogLeNet compute what their papers say, in NumPy written from the papers."""

import mxnet as mx
import numpy as np
import pytest

from configs.schema import EngineSettings, Loss, Model
from tests import forward
from tests.engines import forward_backward
from tests.forward import Forward
from train.engine.init import initial_weights
from train.engine.mxnet.network import TrainedNetwork
from train.networks.arch import build_network

SIZES = {"resnet50": 64, "resnet8": 16, "googlenet": 64}


def _network(model: Model) -> TrainedNetwork:
    table = build_network(model.name, num_classes=model.num_classes, image_size=model.image_size)
    return TrainedNetwork(table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False)


def _tensors(network: TrainedNetwork, model: Model) -> dict[str, np.ndarray]:
    """Draw every tensor so that each of its numbers matters: none is 0 or 1, and no layer's output dies."""
    random = np.random.default_rng(4)
    tensors = initial_weights(network.network, model, seed=3) | network.read_statistics()
    for name, tensor in tensors.items():
        if name.endswith(("_gamma", "_moving_var")):
            tensors[name] = random.uniform(0.5, 1.5, tensor.shape).astype(np.float32)
        elif name.endswith(("_beta", "_bias", "_moving_mean")):
            tensors[name] = random.normal(0, 0.2, tensor.shape).astype(np.float32)
    return tensors


def _images(model: Model, count: int) -> np.ndarray:
    shape = (count, 3, model.image_size, model.image_size)
    return np.random.default_rng(5).standard_normal(shape, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_logits_are_those_of_the_paper(name: str) -> None:
    model = Model(name=name, num_classes=10, image_size=SIZES[name], classifier_std=0.5)
    network, compute = _network(model), getattr(forward, name)
    tensors, images = _tensors(network, model), _images(model, 2)
    network.load_weights(tensors)
    ours = network.inference()(mx.nd.array(images)).asnumpy()
    expected = compute(Forward(tensors), images)
    assert np.abs(ours - expected).max() <= 1e-4 * expected.std()
    # The comparison is worth something: images differ, and they move the logits more than the classifier's bias does.
    assert np.abs(expected[0] - expected[1]).max() > 0.05 * expected.std()
    assert expected.std() > 2 * tensors["classifier_bias"].std()


def test_a_training_step_normalises_by_the_batch_and_moves_the_running_statistics() -> None:
    model = Model(name="resnet8", num_classes=10, image_size=32, bn_epsilon=0.05, bn_momentum=0.7, classifier_std=0.5)
    network = _network(model)
    tensors, images = _tensors(network, model), _images(model, 4)
    network.load_weights(tensors)
    labels = np.arange(4)
    loss = forward_backward(network, mx.nd.array(images), mx.nd.array(labels)).asscalar()
    passed = Forward(tensors, epsilon=0.05, is_training=True)
    logits = forward.resnet8(passed, images)
    assert loss == pytest.approx(_cross_entropy(logits, labels).sum(), rel=1e-5)
    moved = network.read_statistics()
    assert len(moved) == 2 * len(passed.batch_statistics)
    for layer, (mean, variance) in passed.batch_statistics.items():
        for moment, batch in (("mean", mean), ("var", variance)):
            key = f"{layer}_moving_{moment}"
            np.testing.assert_allclose(moved[key], 0.7 * tensors[key] + 0.3 * batch, rtol=1e-4, atol=1e-4, err_msg=key)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels])


def test_statistics_that_are_not_given_are_mean_0_and_variance_1() -> None:
    model = Model(name="resnet8", num_classes=10, image_size=16)
    network = _network(model)
    network.load_weights(_tensors(network, model))
    network.load_weights(initial_weights(network.network, model, seed=3))
    for name, statistic in network.read_statistics().items():
        assert (statistic == (1 if name.endswith("_var") else 0)).all(), name


@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_epsilon_reaches_the_inference_too(epsilon: float) -> None:
    model = Model(name="resnet8", num_classes=10, image_size=16, bn_epsilon=epsilon, classifier_std=0.5)
    network = _network(model)
    tensors, images = _tensors(network, model), _images(model, 2)
    network.load_weights(tensors)
    expected, other = (forward.resnet8(Forward(tensors, epsilon=each), images) for each in (epsilon, 0.5 - epsilon))
    np.testing.assert_allclose(network.inference()(mx.nd.array(images)).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(other - expected).max() > 0.1 * expected.std()
