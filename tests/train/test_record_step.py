"""The record recipe's update, from its YAML to the fused operators, against the record's own formula."""

from typing import Literal

import mxnet as mx
import numpy as np
import pytest

from configs.load import load_recipe
from configs.plan import plan_run
from configs.schema import Lars
from tests.oracles import record_lr, record_update
from train.engine.mxnet.lars import MomentumOptimizer
from train.networks.arch import Parameter
from train.schedule import resolve_schedule

STEPS = 5


def _train(parameter: Parameter, weight: np.ndarray, gradients: list[np.ndarray], first_step: int) -> np.ndarray:
    recipe = load_recipe("abci-b86016")
    schedule = resolve_schedule(recipe, plan_run(recipe, 2048))
    array, total = mx.nd.array(weight), mx.nd.zeros(weight.shape)
    assert isinstance(recipe.optimizer, Lars)
    optimizer = MomentumOptimizer(recipe.optimizer, (parameter,), weights=[array], gradients=[total], rescale=1 / 86016)
    for step, gradient in enumerate(gradients, start=first_step):
        total[:] = gradient * 86016
        optimizer.update(schedule.at(step))
    return np.asarray(array.asnumpy())


@pytest.mark.parametrize("first_step", [0, 268, 537, 700, 1318])
@pytest.mark.parametrize("gradient_scale", [1e-4, 1.0], ids=["decay shows", "gradient rules"])
def test_a_convolution_moves_as_in_the_record(first_step: int, gradient_scale: float) -> None:
    random = np.random.default_rng(first_step)
    weight = random.standard_normal((64, 16, 3, 3), np.float32)
    gradients = [gradient_scale * random.standard_normal(weight.shape, np.float32) for _ in range(STEPS)]
    ours = _train(Parameter("conv_weight", "weight", weight.shape), weight, gradients, first_step)
    moved, expected = ours - weight, record_update(weight, gradients, first_step) - weight
    assert np.linalg.norm(moved - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", ["gamma", "beta", "bias"])
def test_batch_norm_and_bias_get_plain_momentum_without_decay(kind: Literal["gamma", "beta", "bias"]) -> None:
    weight = np.ones(8, np.float32)
    gradient = np.full(8, 0.01, np.float32)
    ours = _train(Parameter(f"any_{kind}", kind, (8,)), weight, [gradient, gradient], 700)
    first = -record_lr(700) * 0.01
    second = 0.96 * first - record_lr(701) * 0.01
    np.testing.assert_allclose(ours, 1 + first + second, rtol=1e-5)
