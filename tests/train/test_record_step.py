"""The record recipe's update, from its YAML to the engines' operators, against the record's own formula."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_recipe
from configs.plan import plan_run
from tests.engines import cpu_engine, each_engine
from tests.oracles import record_update
from train.engine.build import build_optimizer
from train.networks.layer import Parameter
from train.schedule import resolve_schedule

STEPS = 5


def _train(
    name: str, parameter: Parameter, weight: np.ndarray, gradients: list[np.ndarray], first_step: int
) -> np.ndarray:
    recipe = load_recipe("abci-b86016")
    schedule = resolve_schedule(recipe, plan_run(recipe, 2048))
    engine: Any = cpu_engine(name)
    array, total = engine.from_host(weight), engine.zeros(weight.shape)
    network: Any = SimpleNamespace(
        parameters=(parameter,), weights=[array], masters=[array], gradients=[total],
        may_overflow=False, follow_masters=lambda: None,
    )  # fmt: skip
    optimizer = build_optimizer(engine, recipe.optimizer, network, rescale=1 / 86016, arrivals=[0])
    for step, gradient in enumerate(gradients, start=first_step):
        engine.overwrite(total, engine.from_host(gradient * np.float32(86016)))
        optimizer.update(schedule.at(step))
    return np.asarray(engine.to_host(array))


@pytest.mark.parametrize("first_step", [0, 268, 537, 700, 1318])
@pytest.mark.parametrize("gradient_scale", [1e-4, 1.0], ids=["decay shows", "gradient rules"])
@each_engine
def test_a_convolution_moves_as_in_the_record(name: str, first_step: int, gradient_scale: float) -> None:
    random = np.random.default_rng(first_step)
    weight = random.standard_normal((64, 16, 3, 3), np.float32)
    gradients = [np.float32(gradient_scale) * random.standard_normal(weight.shape, np.float32) for _ in range(STEPS)]
    ours = _train(name, Parameter("conv_weight", "weight", weight.shape), weight, gradients, first_step)
    moved, expected = ours - weight, record_update(weight, gradients, first_step) - weight
    assert np.linalg.norm(moved - expected) < 1e-3 * np.linalg.norm(expected)
