"""The multi-tensor optimizers against the papers in NumPy, over several steps of a warm-up and a decay."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.optimizers import Adam, HyperParameters, Lars, OptimizerBlock, Sgd
from tests.oracles import LarsOracle, adam_steps
from train.networks.arch import Parameter, build_network

torch = pytest.importorskip("torch")

RATES = [0.1, 0.2, 0.3, 0.25, 0.1, 0.02]
BATCH = 8

CONFIGS: dict[str, OptimizerBlock] = {
    "lars": Lars(name="lars", momentum=0.9, weight_decay=5e-4, trust_coefficient=0.01, epsilon=1e-9),
    "record": Lars(
        name="lars", momentum=0.96, weight_decay=5e-5, trust_coefficient=0.0025, epsilon=1e-9, trust_weight_decay=6.5e-4
    ),
    "trust without decay": Lars(
        name="lars", weight_decay=5e-5, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta"), trust_weight_decay=0.2
    ),
    "no decay in ratios": Lars(
        name="lars", weight_decay=0.2, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta"), trust_weight_decay=0
    ),
    "no skips": Lars(name="lars", weight_decay=2e-4, skip_trust_ratio=(), skip_weight_decay=("gamma", "beta")),
    "large epsilon": Lars(
        name="lars", weight_decay=0.2, trust_coefficient=0.01, epsilon=0.5, skip_weight_decay=("gamma",)
    ),
    "sgd": Sgd(name="sgd", momentum=0.9, weight_decay=1e-4),
    "adam": Adam(name="adam"),
    "adam, decay": Adam(name="adam", momentum=0.8, beta_2=0.99, epsilon=1e-2, weight_decay=1e-2),
}


def _expected(config: Any, parameter: Parameter, weight: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    decays = parameter.kind not in config.skip_weight_decay
    weight_decay = config.weight_decay if decays else 0.0
    if isinstance(config, Adam):
        constants = config.momentum, config.beta_2, config.epsilon, weight_decay
        return adam_steps(weight, gradients, RATES, constants)
    if isinstance(config, Sgd):
        oracle = LarsOracle(config.momentum, weight_decay, 1.0, 0.0, 0.0, has_trust_ratio=False)
    else:
        own = config.trust_weight_decay
        oracle = LarsOracle(
            momentum=config.momentum,
            weight_decay=weight_decay,
            trust_coefficient=config.trust_coefficient,
            epsilon=config.epsilon,
            trust_weight_decay=weight_decay if own is None or not decays else own,
            has_trust_ratio=parameter.kind not in config.skip_trust_ratio,
        )
    return oracle.steps(weight, gradients, RATES)


def _network(parameters: Any, weights: list[np.ndarray], dtype: Any) -> Any:
    masters = [torch.tensor(weight) for weight in weights]
    halves = [each.kind not in ("gamma", "beta") and dtype != torch.float32 for each in parameters]
    pairs = list(zip(masters, halves, strict=True))
    return SimpleNamespace(
        parameters=parameters,
        masters=masters,
        weights=[master.to(dtype) if half else master for master, half in pairs],
        gradients=[torch.zeros_like(master, dtype=dtype if half else torch.float32) for master, half in pairs],
    )


def _built(config: Any, network: Any, rescale: float) -> Any:
    from train.engine.torch.engine import FUSED

    return FUSED[type(config)](config, network, rescale=rescale)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_six_steps_equal_the_paper_for_every_tensor_of_a_network(name: str, precision: str) -> None:
    config: Any = CONFIGS[name]
    parameters = build_network("resnet8", num_classes=10, image_size=32).parameters
    random = np.random.default_rng(7)
    start = [random.standard_normal(each.shape, np.float32) for each in parameters]
    network = _network(parameters, start, getattr(torch, precision))
    optimizer = _built(config, network, 1 / BATCH)
    history: list[list[np.ndarray]] = []
    for step, lr in enumerate(RATES):
        for total in network.gradients:
            total.copy_(torch.tensor(random.standard_normal(tuple(total.shape), np.float32) * BATCH))
        history.append([total.float().numpy() / BATCH for total in network.gradients])
        optimizer.update(HyperParameters(lr, config.momentum, config.weight_decay, step))
    for index, parameter in enumerate(parameters):
        expected = _expected(config, parameter, start[index], [step[index] for step in history])
        master, weight = network.masters[index], network.weights[index]
        np.testing.assert_allclose(master.numpy(), expected, rtol=2e-5, atol=2e-6, err_msg=parameter.name)
        assert torch.equal(weight, master.to(weight.dtype))
    optimizer.reset()
    assert len(optimizer.momenta) == config.num_moments * len(parameters)
    assert not any(each.any() for each in optimizer.momenta)


def test_a_tensor_of_zeros_moves_at_the_plain_rate() -> None:
    network = _network((Parameter("zero_weight", "weight", (4, 3)),), [np.zeros((4, 3), np.float32)], torch.float32)
    network.gradients[0].fill_(2.0)
    _built(Lars(name="lars", momentum=0.9, weight_decay=1e-4), network, 0.5).update(HyperParameters(0.1, 0.9, 1e-4))
    np.testing.assert_allclose(network.masters[0].numpy(), -0.1, rtol=1e-6)


@pytest.mark.parametrize(("decay", "expected"), [(0.0, 2.0), (0.1, 1.9)])
def test_a_tensor_without_a_gradient_only_decays_and_that_at_the_plain_rate(decay: float, expected: float) -> None:
    network = _network((Parameter("a_weight", "weight", (4, 3)),), [np.full((4, 3), 2, np.float32)], torch.float32)
    config = Lars(name="lars", momentum=0.9, weight_decay=decay, epsilon=0)
    _built(config, network, 0.5).update(HyperParameters(0.5, 0.9, decay))
    np.testing.assert_allclose(network.masters[0].numpy(), expected, rtol=1e-6)
