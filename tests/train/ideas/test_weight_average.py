"""Averages over steps of weights and running statistics against NumPy: their values, and what is evaluated of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from configs.optimizers import HyperParameters
from configs.plan import plan_run
from tests.engines import ALONE, each_engine, random_batch
from tests.forward import Forward, resnet8
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts, build_model
from train.engine.protocol import open_engine
from train.evaluate import Evaluator, metric_of


def _state(model: ModelParts) -> dict[str, np.ndarray]:
    return {**model.network.read_weights(), **model.network.read_statistics()}


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize("every", [1, 3])
def test_averages_of_weights_and_statistics_move_by_their_half_life_and_are_what_is_evaluated(
    name: str, every: int
) -> None:
    small = ["model.name=resnet8", "model.image_size=16", "batch.global_size=8", "cluster.ranks_per_node=1"]
    average = [f"optimizer.average_half_life_steps={2 * every}", f"optimizer.average_every_steps={every}"]
    recipe, cluster = load_both("digits", "laptop", [*small, *average, f"cluster.engine.name={name}"])
    engine = open_engine(cluster, ALONE)
    model = build_model(engine, recipe, cluster, plan_run(recipe, 1))
    (part,) = model.parts
    expected: dict[str, np.ndarray] = {}
    averaged: list[dict[str, np.ndarray]] = []
    for step in range(8):
        model.network.forward(*random_batch(engine, model.network, seed=step))
        model.network.backward()
        model.optimizer.update(HyperParameters(0.5, 0.9, 0.0, step))
        part.updated(step)
        own = _state(model)
        if step < every:  # what came before the first update is no part of an average
            expected = own
        if (step + 1) % every == 0:  # two updates are a half-life
            averaged.append(own)
            ages = np.arange(len(averaged))[::-1]
            expected = {key: np.average([each[key] for each in averaged], 0, 0.5 ** (ages / 2)) for key in own}
    with part.weights():
        for key, each in _state(model).items():
            np.testing.assert_allclose(each, expected[key], rtol=1e-5, atol=1e-6)
            assert not np.allclose(each, own[key])
    images, labels = random_batch(engine, model.network, seed=9)
    source: Any = SimpleNamespace(batches=lambda: iter([(images, labels, 8)]))
    parts = model.network, source, SingleProcess(), metric_of(engine, recipe.loss), lambda: None
    row = Evaluator(*parts, model.parts)().row
    logits = resnet8(Forward(expected, recipe.model.bn_epsilon), engine.to_host(images))
    right = engine.to_host(labels).astype(int)
    likelihoods = logits[range(8), right] - np.log(np.exp(logits).sum(axis=1))
    assert row["correct"] == (logits.argmax(axis=1) == right).sum()
    assert row["eval_loss"] == pytest.approx(-likelihoods.mean(), rel=1e-4)
    for key, each in _state(model).items():
        assert np.array_equal(each, own[key])
