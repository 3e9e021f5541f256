"""An optimizer that brings its own update rule is run on every tensor as the rule says, against NumPy."""

from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import mxnet as mx
import numpy as np
import pytest

from configs.load import load_cluster
from configs.optimizers import HyperParameters, OptimizerBlock
from tests.engines import ALONE, cpu_engine
from tests.oracles import LarsOracle
from train.engine.protocol import Trainee, open_engine
from train.engine.rule_optimizer import RuleOptimizer
from train.networks.arch import Parameter

KINDS: tuple[Literal["weight", "gamma", "bias"], ...] = ("weight", "gamma", "bias")
PARAMETERS = tuple(Parameter(f"a_{kind}", kind, shape) for kind, shape in zip(KINDS, ((3, 4), (4,), (5,)), strict=True))
WITH_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")
RATES = [0.1, 0.2, 0.05]
BATCH = 16


class HeavyBall(OptimizerBlock):
    """Momentum SGD, and a second moment that counts the steps."""

    num_moments: ClassVar[int] = 2
    name: Literal["heavy"] = "heavy"

    def update_rule(
        self, weight: Any, gradient: Any, moments: Sequence[Any], values: HyperParameters
    ) -> tuple[Any, Sequence[Any]]:
        velocity, count = moments
        velocity = values.momentum * velocity - values.lr * (gradient + values.weight_decay * weight)
        return weight + velocity, (velocity, count + 1)


def test_each_tensor_has_its_moments_and_its_decay_and_gets_means() -> None:
    random = np.random.default_rng(2)
    start = [random.standard_normal(each.shape, np.float32) for each in PARAMETERS]
    masters = [mx.nd.array(each) for each in start]
    # The first tensor is trained in float16 and has a float32 master; the others are their own masters.
    weights = [masters[0].astype("float16"), *masters[1:]]
    sums = [mx.nd.zeros(each.shape) for each in PARAMETERS]
    network = SimpleNamespace(parameters=PARAMETERS, weights=weights, masters=masters, gradients=sums)
    config = HeavyBall(momentum=0.9, weight_decay=0.02, skip_weight_decay=("gamma",))
    optimizer = RuleOptimizer(cpu_engine(), config, cast(Trainee, network), rescale=1 / BATCH)
    history: list[list[np.ndarray]] = []
    for step, lr in enumerate(RATES):
        history.append([random.standard_normal(each.shape, np.float32) for each in PARAMETERS])
        for total, gradient in zip(sums, history[-1], strict=True):
            total[:] = gradient * BATCH
        optimizer.update(HyperParameters(lr, 0.9, 0.02, step))
    for index, parameter in enumerate(PARAMETERS):
        oracle = LarsOracle(0.9, 0.0 if parameter.kind == "gamma" else 0.02, 1.0, 0.0, 0.0, has_trust_ratio=False)
        expected = oracle.steps(start[index], [each[index] for each in history], RATES)
        np.testing.assert_allclose(masters[index].asnumpy(), expected, rtol=1e-5, atol=1e-6, err_msg=parameter.name)
        np.testing.assert_array_equal(weights[index].asnumpy(), masters[index].astype(weights[index].dtype).asnumpy())
    velocities, counts = optimizer.momenta[:3], optimizer.momenta[3:]
    assert [each.shape for each in velocities] == [each.shape for each in PARAMETERS]
    assert all((count == 3).asnumpy().all() for count in counts)
    optimizer.reset()
    assert not any(each.asnumpy().any() for each in optimizer.momenta)


@pytest.mark.parametrize("name", ["mxnet", pytest.param("torch", marks=WITH_TORCH)])
def test_every_engine_runs_an_optimizer_of_its_own_rule_by_that_rule(name: str) -> None:
    cluster = load_cluster("laptop", [f"cluster.engine.name={name}"])
    engine: Any = open_engine(cluster, ALONE)
    weight, gradient = engine.zeros((2,)) + 1.0, engine.zeros((2,)) + 8.0
    network = SimpleNamespace(
        parameters=(Parameter("a", "weight", (2,)),), weights=[weight], masters=[weight], gradients=[gradient]
    )
    config = HeavyBall(momentum=0.9, weight_decay=0.0)
    optimizer = engine.build_optimizer(config, cast(Trainee, network), rescale=0.25, arrivals=[0])
    assert isinstance(optimizer, RuleOptimizer)
    assert optimizer.config is config
    optimizer.update(HyperParameters(0.5, 0.9, 0.0, step=0))
    assert engine.to_host(weight).tolist() == [0.0, 0.0], "1 - 0.5 * 8 / 4"
