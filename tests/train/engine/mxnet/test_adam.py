"""The fused Adam against the paper in NumPy."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.schema import Adam
from tests.oracles import adam_steps
from train.engine.mxnet.adam import AdamOptimizer
from train.networks.arch import build_network
from train.schedule import HyperParameters

RATES = [1e-3, 2e-3, 3e-3, 2e-3, 1e-3]
BATCH = 8


def _momenta_of(optimizer: AdamOptimizer) -> list[Any]:
    return [each.asnumpy() for each in optimizer.momenta]


@pytest.mark.parametrize(
    "config",
    [
        Adam(name="adam"),
        Adam(name="adam", momentum=0.8, beta_2=0.99, epsilon=1e-2, weight_decay=1e-2),
    ],
    ids=["defaults", "large epsilon and decay"],
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_five_steps_equal_algorithm_1_for_every_tensor_of_a_network(config: Adam, precision: str) -> None:
    parameters = build_network("mnist_small_cnn", num_classes=10, image_size=28, input_channels=1).parameters
    random = np.random.default_rng(7)
    start = [random.standard_normal(each.shape, np.float32) for each in parameters]
    masters = [mx.nd.array(weight) for weight in start]
    weights = [master.astype(precision, copy=False) for master in masters]
    sums = [mx.nd.zeros(each.shape, dtype=precision) for each in parameters]
    optimizer = AdamOptimizer(config, parameters, weights=weights, masters=masters, gradients=sums, rescale=1 / BATCH)
    history: list[list[np.ndarray]] = []
    for step, lr in enumerate(RATES):
        for total in sums:
            total[:] = random.standard_normal(total.shape, np.float32) * BATCH
        history.append([total.asnumpy().astype(np.float64) / BATCH for total in sums])
        optimizer.update(HyperParameters(lr, config.momentum, config.weight_decay, step))
    for index, parameter in enumerate(parameters):
        decay = config.weight_decay if parameter.kind == "weight" else 0.0
        gradients = [step[index] for step in history]
        expected = adam_steps(start[index], gradients, RATES, (config.momentum, config.beta_2, config.epsilon, decay))
        np.testing.assert_allclose(masters[index].asnumpy(), expected, rtol=1e-5, atol=1e-6, err_msg=parameter.name)
        np.testing.assert_array_equal(weights[index].asnumpy(), masters[index].astype(precision).asnumpy())


def test_the_first_step_is_the_rate_whatever_the_gradient() -> None:
    parameters = build_network("mnist_small_cnn", num_classes=10, image_size=28).parameters[-1:]
    weight, total = mx.nd.zeros((10,)), mx.nd.array(10.0 ** np.arange(-3, 7))
    optimizer = AdamOptimizer(Adam(name="adam"), parameters, weights=[weight], gradients=[total], rescale=1.0)
    optimizer.update(HyperParameters(0.5, 0.9, 0.0, step=0))
    np.testing.assert_allclose(weight.asnumpy(), -0.5, rtol=1e-4)
    optimizer.reset()
    assert not any(moment.any() for moment in _momenta_of(optimizer))
