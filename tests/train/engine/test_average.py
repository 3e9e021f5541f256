"""The average of the weights against its definition in NumPy, and what a network has while it is evaluated."""

from typing import Any

import numpy as np
import pytest

from configs.optimizers import HyperParameters, Sgd
from tests.engines import each_engine, small_network
from train.engine.average import AveragingOptimizer


@each_engine
@pytest.mark.parametrize("every", [1, 3])
def test_an_average_moves_by_its_half_life_and_is_what_a_network_has_while_it_is_evaluated(
    name: str, every: int
) -> None:
    engine, _, network = small_network(name)
    config = Sgd(name="sgd", momentum=0.9, weight_decay=0, average_half_life_steps=2 * every, average_every_steps=every)
    optimizer: Any = AveragingOptimizer(
        engine, engine.build_optimizer(config, network, rescale=1.0, arrivals=[]), network
    )
    network.load_weights(start := {key: each + 0.5 for key, each in network.read_weights().items()})
    optimizer.reset()
    expected = dict(start)
    for step in range(7):
        for gradient in network.gradients:
            engine.overwrite(gradient, gradient * 0 + (step + 1))
        optimizer.update(HyperParameters(0.1, 0.9, 0.0, step))
        if step in range(every - 1, 7, every):  # two updates are a half-life
            expected = {key: each * 0.5**0.5 + own[key] * (1 - 0.5**0.5) for own in [network.read_weights()]
                        for key, each in expected.items()}  # fmt: skip
    own = network.read_weights()
    with optimizer.averaged():
        averages = network.read_weights()
    for key, each in network.read_weights().items():
        np.testing.assert_allclose(averages[key], expected[key], rtol=1e-5, atol=1e-6)
        assert np.array_equal(each, own[key])
        assert not np.allclose(each, averages[key])
