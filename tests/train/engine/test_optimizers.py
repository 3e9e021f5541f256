"""The optimizers of every engine against the papers in NumPy, over several steps of a warm-up and a decay."""

from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from configs.optimizers import Adam, AdamW, HyperParameters, Lamb, Lars, Muon, OptimizerBlock, Sgd
from configs.optimizers.adam import AdamMoments
from tests.engines import BOTH, cpu_engine, each_engine, small_network
from tests.oracles import LarsOracle, adam_steps, decoupled_sgd_steps, lamb_steps, muon_steps, torch_sgd_steps
from train.engine.build import build_optimizer
from train.networks.arch import build_network
from train.networks.layer import Parameter

RATES = [0.1, 0.2, 0.3, 0.25, 0.1, 0.02]
BATCH = 8
NETWORK = build_network("resnet8", num_classes=10, image_size=32).parameters
NO_SKIPS: dict[str, Any] = {"skip_trust_ratio": (), "skip_weight_decay": ("gamma", "beta")}


class HeavyBall(OptimizerBlock):
    """Momentum SGD by a rule of its own, and a second moment that counts the steps."""

    num_moments: ClassVar[int] = 2
    name: Literal["heavy"] = "heavy"

    def update_rule(
        self, weight: Any, gradient: Any, moments: Sequence[Any], values: HyperParameters
    ) -> tuple[Any, Sequence[Any]]:
        velocity, count = moments
        velocity = values.momentum * velocity - values.lr * (gradient + values.weight_decay * weight)
        return weight + velocity, (velocity, count + 1)


CONFIGS: dict[str, Any] = {
    "lars": Lars(name="lars", momentum=0.9, weight_decay=5e-4, trust_coefficient=0.01, epsilon=1e-9),
    "record": Lars(
        name="lars", momentum=0.96, weight_decay=5e-5, trust_coefficient=0.0025, epsilon=1e-9, trust_weight_decay=6.5e-4
    ),
    "trust without decay": Lars(name="lars", weight_decay=5e-5, trust_weight_decay=0.2, **NO_SKIPS),
    "no decay in ratios": Lars(name="lars", weight_decay=0.2, trust_weight_decay=0, **NO_SKIPS),
    # Against gradients of about the weights' norm, a decay of 0.2 moves a trust ratio by a sixth.
    "no skips": Lars(name="lars", weight_decay=0.2, **NO_SKIPS),
    # Against gradients of norm 4 to 190, an epsilon of 0.5 moves an update by up to a tenth.
    "large epsilon": Lars(
        name="lars", weight_decay=0.2, trust_coefficient=0.01, epsilon=0.5, skip_weight_decay=("gamma",)
    ),
    "sgd": Sgd(name="sgd", momentum=0.9, weight_decay=1e-4),
    "decoupled sgd": Sgd(name="sgd", momentum=0.8, weight_decay=0.05, decoupled_weight_decay=True),
    "corrected sgd": Sgd(name="sgd", momentum=0.8, weight_decay=0.05, momentum_correction=True),
    "adam": Adam(name="adam"),
    "adam, decay": Adam(name="adam", momentum=0.8, beta_2=0.99, epsilon=1e-2, weight_decay=1e-2),
    "adamw": AdamW(name="adamw", momentum=0.8, beta_2=0.99, weight_decay=0.5),
    "lamb": Lamb(name="lamb", momentum=0.8, beta_2=0.99, weight_decay=0.5, skip_weight_decay=("gamma", "bias")),
    "muon": Muon(name="muon", weight_decay=0.1, sgd_lr_ratio=0.5, sgd_momentum=0.7),
    "own rule": HeavyBall(momentum=0.9, weight_decay=0.02, skip_weight_decay=("gamma",)),
}


def _expected(config: Any, parameter: Parameter, weight: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    decays = parameter.kind not in config.skip_weight_decay
    weight_decay = config.weight_decay if decays else 0.0
    if isinstance(config, AdamMoments):
        constants = config.momentum, config.beta_2, config.epsilon, weight_decay
        of_adam = partial(adam_steps, is_decoupled=isinstance(config, AdamW))
        return (lamb_steps if isinstance(config, Lamb) else of_adam)(weight, gradients, RATES, constants)
    if isinstance(config, Muon):
        if parameter.kind != "weight" or parameter in (NETWORK[0], NETWORK[-2]):
            return muon_steps(
                weight, gradients, [lr * config.sgd_lr_ratio for lr in RATES], config.sgd_momentum, weight_decay, 0
            )
        return muon_steps(weight, gradients, RATES, config.momentum, weight_decay, config.newton_schulz_steps)
    if config.name == "sgd" and config.decoupled_weight_decay:
        settings = {"momentum": config.momentum, "decay": weight_decay, "base_lr": max(RATES)}
        return decoupled_sgd_steps(weight, gradients, RATES, **settings)
    if config.name == "sgd" and config.momentum_correction:
        return torch_sgd_steps(weight, gradients, RATES, momentum=config.momentum, decay=weight_decay)
    if not isinstance(config, Lars):
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


def _hyper(config: Any, step: int) -> HyperParameters:
    """Give the numbers of a step as the schedule does that has `RATES`."""
    values = HyperParameters(RATES[step], config.momentum, config.weight_decay, step)
    adapted: HyperParameters = config.adapted(values, RATES[step - 1] if step else 0.0, max(RATES))
    return adapted


def _network(engine: Any, parameters: Sequence[Parameter], masters: Sequence[np.ndarray], kind: str = "whole") -> Any:
    """Make the arrays of a network.

    Args:
        engine: Makes them.
        parameters: Names, kinds and shapes.
        masters: Initial values.
        kind: "whole": the weights are their own masters. "copies": they have float32 masters. "half": weights and
            gradients of convolutions and dense layers are float16.
    """
    types = ["float16" if kind == "half" and each.kind not in ("gamma", "beta") else "float32" for each in parameters]
    held = [engine.from_host(each) for each in masters]
    pairs = list(zip(masters, held, types, strict=True))
    weights = [own if kind == "whole" else engine.from_host(each.astype(number)) for each, own, number in pairs]
    return SimpleNamespace(
        parameters=tuple(parameters),
        masters=held,
        weights=weights,
        gradients=[engine.from_host(np.zeros(each.shape, number)) for each, _, number in pairs],
        may_overflow=False,
        leave_gradients=lambda: None,
        follow_masters=lambda: None if kind == "whole" else engine.overwrite_each(weights, held),
    )


KINDS = [pytest.param(*each.values, kind, marks=each.marks) for each in BOTH for kind in ("half", "built")]
KINDS += [pytest.param("torch", "built half", marks=BOTH[1].marks)]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_six_steps_equal_the_paper_for_every_tensor_of_a_network(name: str, kind: str, config: Any) -> None:
    engine: Any = cpu_engine(name)
    parameters = NETWORK
    random = np.random.default_rng(7)
    start = [random.standard_normal(each.shape, np.float32) for each in parameters]
    if kind.startswith("built"):  # by the engine, which may lay the tensors together
        settings: dict[str, Any] = {"precision": "float16", "layout": "NHWC"} if kind == "built half" else {}
        engine, _, network = small_network(name, **settings)
        network.load_weights(dict(zip([each.name for each in parameters], start, strict=True)))
    else:
        network = _network(engine, parameters, start, kind)
        network.may_overflow = kind == "half" and name == "torch"
    optimizer = build_optimizer(engine, config, network, rescale=1 / BATCH, arrivals=[0] * len(parameters))
    history: list[list[np.ndarray]] = []
    for step in range(len(RATES)):
        for total in network.gradients:
            values = random.standard_normal(tuple(total.shape), np.float32) * BATCH
            engine.overwrite(total, engine.from_host(values))
        history.append([engine.to_host(total).astype(np.float64) / BATCH for total in network.gradients])
        optimizer.update(_hyper(config, step))
    # A CPU squares float16 numbers in float16 for MXNet's norms; a GPU does it in float32.
    rtol = 1e-3 if kind == "half" and name == "mxnet" else 2e-5
    atol = 2e-5 if isinstance(config, AdamMoments) or rtol > 2e-5 else 2e-6  # Adam moves weights by the rates' sum, 1
    for index, parameter in enumerate(parameters):
        expected = _expected(config, parameter, start[index], [step[index] for step in history])
        master, weight = (engine.to_host(arrays[index]) for arrays in (network.masters, network.weights))
        np.testing.assert_allclose(master, expected, rtol, atol, err_msg=parameter.name)
        np.testing.assert_allclose(weight, master.astype(weight.dtype), rtol=1e-3)  # one bit: CPUs round up
    assert optimizer.config is config
    assert len(optimizer.momenta) >= config.num_moments * len(parameters)
    if isinstance(config, HeavyBall):
        assert all((engine.to_host(count) == len(RATES)).all() for count in optimizer.momenta[len(parameters) :])
    optimizer.reset()
    assert not any(engine.to_host(each).any() for each in optimizer.momenta)


LARS, LAMB = Lars(name="lars", weight_decay=0, epsilon=0), Lamb(name="lamb", weight_decay=0)


@each_engine
@pytest.mark.parametrize("kind", ["whole", "copies"])
@pytest.mark.parametrize(
    ("config", "numbers", "expected"),
    [
        (LARS, (0, 1, 1e-4), -0.5), (LARS, (2, 0, 0), 2), (LARS, (2, 0, 0.1), 1.9),
        (LAMB, (0, 1, 0.1), -0.5), (LAMB, (0, 0, 0.1), 0), (LAMB, (2, 0, 0.1), 1), (LAMB, (4, 1, 0.25), 2),
        (LAMB, (4, 1, 0), 3.5),
    ],
)  # fmt: skip
def test_a_tensor_whose_weights_or_gradients_are_zeros_moves_at_the_plain_rate(
    name: str, kind: str, config: Any, numbers: tuple[float, float, float], expected: float
) -> None:
    """LAMB has no trust ratio without weight decay, either; its first step is the sign of the gradient."""
    engine, (weight, gradient, decay) = cpu_engine(name), numbers
    network = _network(engine, [Parameter("a", "weight", (4, 3))], [np.full((4, 3), weight, np.float32)], kind)
    engine.overwrite(network.gradients[0], engine.from_host(np.full((4, 3), 2 * gradient, np.float32)))
    config = config.model_copy(update={"weight_decay": decay})
    optimizer = build_optimizer(engine, config, network, rescale=0.5, arrivals=[0])
    optimizer.update(HyperParameters(0.5, 0.9, decay))
    np.testing.assert_allclose(engine.to_host(network.masters[0]), expected, rtol=1e-5)


@pytest.mark.medium
@each_engine
def test_a_trust_ratio_of_millions_of_weights_is_as_exact_as_that_of_few(name: str) -> None:
    engine: Any = cpu_engine(name)
    parameter, random = Parameter("a", "weight", (2048, 1152)), np.random.default_rng(7)
    weight, gradient = (random.standard_normal(parameter.shape, np.float32) for _ in range(2))
    network = _network(engine, [parameter], [weight])
    gradient[1:] = 0  # a sum of a thousand squares is exact, whatever the order
    engine.overwrite(network.gradients[0], engine.from_host(gradient))
    config = Lars(name="lars", weight_decay=0, trust_coefficient=0.5, epsilon=0)
    build_optimizer(engine, config, network, rescale=1.0, arrivals=[0]).update(HyperParameters(2.0, 0.9, 0.0))
    ratio = np.linalg.norm(weight.astype(np.float64)) / np.linalg.norm(gradient.astype(np.float64))
    np.testing.assert_allclose(engine.to_host(network.masters[0]), weight - ratio * gradient, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["whole", "copies"])
def test_gradients_that_arrive_first_are_updated_while_others_are_still_being_summed(kind: str) -> None:
    pytest.importorskip("mxnet")  # PyTorch waits for all sums on the host
    from train.engine.mxnet.host_operator import HostOperators

    engine: Any = cpu_engine("mxnet")
    parameters = [Parameter("late", "weight", (1,)), Parameter("early", "weight", (1,))]
    network = _network(engine, parameters, [np.array([3.0], np.float32), np.array([1.0], np.float32)], kind)
    for gradient in network.gradients:
        engine.overwrite(gradient, engine.from_host(np.ones(1, np.float32)))
    optimizer = build_optimizer(engine, Sgd(name="sgd", weight_decay=0.0), network, rescale=1.0, arrivals=[1, 0])
    sums: SimpleQueue[Any] = SimpleQueue()
    HostOperators().start("late", [network.gradients[0]], 0, lambda _arrays, done: sums.put(done))
    complete = sums.get(timeout=60)
    optimizer.update(HyperParameters(0.5, 0.9, 0.0))
    assert engine.to_host(network.masters[1]) == [0.5], "and this does not wait"
    complete(None)
    assert engine.to_host(network.masters[0]) == [2.5]
