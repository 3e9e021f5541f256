"""Both optimizers, the fused one and that of a CPU, against the paper in NumPy, over a warm-up and a decay."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.schema import Lars, Sgd
from tests.oracles import LarsOracle
from train.engine.mxnet.host_momentum import HostMomentum
from train.engine.mxnet.lars import MomentumOptimizer
from train.networks.arch import Parameter, build_network
from train.schedule import HyperParameters

RATES = [0.1, 0.2, 0.3, 0.25, 0.1, 0.02]
BATCH = 8


both = pytest.mark.parametrize("optimizer_class", [HostMomentum, MomentumOptimizer])


def _train(
    optimizer_class: type[Any],
    config: Lars | Sgd,
    parameters: tuple[Parameter, ...],
    weights: list[np.ndarray],
    steps: int = 6,
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Give (our final weights, the gradients used) for random gradient sums."""
    random = np.random.default_rng(3)
    arrays = [mx.nd.array(weight) for weight in weights]
    sums = [mx.nd.zeros(weight.shape) for weight in weights]
    optimizer = optimizer_class(config, parameters, weights=arrays, gradients=sums, rescale=1 / BATCH)
    history = []
    for lr in RATES[:steps]:
        gradients = [random.standard_normal(weight.shape, np.float32) for weight in weights]
        for array, gradient in zip(sums, gradients, strict=True):
            array[:] = gradient * BATCH
        optimizer.update(HyperParameters(lr, config.momentum, config.weight_decay))
        history.append(gradients)
    return [array.asnumpy() for array in arrays], history


def _oracle(config: Lars | Sgd, parameter: Parameter) -> LarsOracle:
    decays = parameter.kind not in config.skip_weight_decay
    weight_decay = config.weight_decay if decays else 0.0
    if isinstance(config, Sgd):
        return LarsOracle(config.momentum, weight_decay, 1.0, 0.0, 0.0, has_trust_ratio=False)
    own = config.trust_weight_decay
    return LarsOracle(
        momentum=config.momentum,
        weight_decay=weight_decay,
        trust_coefficient=config.trust_coefficient,
        epsilon=config.epsilon,
        trust_weight_decay=weight_decay if own is None or not decays else own,
        has_trust_ratio=parameter.kind not in config.skip_trust_ratio,
    )


@both
@pytest.mark.parametrize(
    "config",
    [
        Lars(name="lars", momentum=0.9, weight_decay=5e-4, trust_coefficient=0.01, epsilon=1e-9),
        Lars(name="lars", momentum=0.96, weight_decay=5e-5, trust_coefficient=0.0025, epsilon=1e-9,
             trust_weight_decay=6.5e-4),
        Lars(name="lars", weight_decay=5e-5, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta"),
             trust_weight_decay=0.2),
        Lars(name="lars", weight_decay=0.2, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta"),
             trust_weight_decay=0),
        # Against gradients of about the weights' norm, a decay of 0.2 moves a trust ratio by a sixth.
        Lars(name="lars", weight_decay=0.2, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta")),
        # Against gradients of norm 4 to 190 an epsilon of 0.5 moves an update by up to a tenth.
        Lars(name="lars", weight_decay=0.2, trust_coefficient=0.01, epsilon=0.5, skip_weight_decay=("gamma",)),
        Sgd(name="sgd", momentum=0.9, weight_decay=1e-4),
    ],
    ids=["lars", "record", "trust without decay", "no decay in ratios", "no skips", "large epsilon", "sgd"],
)  # fmt: skip
def test_six_steps_equal_the_paper_for_every_tensor_of_a_network(
    optimizer_class: type[Any], config: Lars | Sgd
) -> None:
    parameters = build_network("resnet8", num_classes=10, image_size=32).parameters
    random = np.random.default_rng(7)
    weights = [random.standard_normal(parameter.shape, np.float32) for parameter in parameters]
    ours, history = _train(optimizer_class, config, parameters, weights)
    for index, parameter in enumerate(parameters):
        gradients = [step[index] for step in history]
        expected = _oracle(config, parameter).steps(weights[index], gradients, RATES)
        np.testing.assert_allclose(ours[index], expected, rtol=1e-5, atol=1e-6, err_msg=parameter.name)


@both
def test_a_tensor_of_zeros_moves_at_the_plain_rate(optimizer_class: type[Any]) -> None:
    config = Lars(name="lars", momentum=0.9, weight_decay=1e-4)
    parameter = Parameter("zero_weight", "weight", (4, 3))
    ours, history = _train(optimizer_class, config, (parameter,), [np.zeros((4, 3), np.float32)], steps=1)
    np.testing.assert_allclose(ours[0], -RATES[0] * history[0][0], rtol=1e-6)


@both
@pytest.mark.parametrize(("decay", "expected"), [(0.0, 2.0), (0.1, 1.9)])
def test_a_tensor_without_a_gradient_only_decays_and_that_at_the_plain_rate(
    optimizer_class: type[Any], decay: float, expected: float
) -> None:
    weight, config = mx.nd.full((4, 3), 2.0), Lars(name="lars", momentum=0.9, weight_decay=decay, epsilon=0)
    parameters = (Parameter("a_weight", "weight", (4, 3)),)
    given = {"weights": [weight], "gradients": [mx.nd.zeros((4, 3))], "rescale": 0.5}
    optimizer_class(config, parameters, **given).update(HyperParameters(0.5, 0.9, decay))
    mx.nd.waitall()
    np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-6)


@both
def test_reset_forgets_the_momentum(optimizer_class: type[Any]) -> None:
    weight, total = mx.nd.ones((3, 3)), mx.nd.ones((3, 3))
    config = Sgd(name="sgd", momentum=0.9, weight_decay=0.0)
    parameter = Parameter("one_weight", "weight", (3, 3))
    optimizer = optimizer_class(config, (parameter,), weights=[weight], gradients=[total], rescale=1.0)
    optimizer.update(HyperParameters(1.0, 0.9, 0.0))
    optimizer.reset()
    total[:] = 0
    before = weight.asnumpy()
    optimizer.update(HyperParameters(1.0, 0.9, 0.0))
    np.testing.assert_array_equal(weight.asnumpy(), before)
