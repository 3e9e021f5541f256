"""Frozen layers: the network of the formulas whose frozen tensors are constants, under every engine.

That a run keeps their bits is seen in tests/train/test_session.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_recipe
from tests.engines import each_engine, forward_backward, randomize, small_network
from tests.forward import Forward, resnet8
from tests.oracles import smoothed_cross_entropy
from train.engine.init import initial_weights
from train.engine.parameters import load_parameters
from train.networks.arch import network_of
from train.plan.__main__ import main as plan

GIVEN = ("model.name=resnet8", "model.image_size=8", "model.parameters=any.ckpt", "loss.label_smoothing=0")
FREEZINGS = {
    "backbone": ("stem", "stage"),
    "stem, stage1": ("stem", "stage1"),
    "stage2, stage3_block1_conv2, classifier": ("stage2", "stage3_block1_conv2", "classifier"),
}
"""``model.frozen`` -> what the names of the frozen tensors begin with."""


def _network(name: str, frozen: str) -> tuple[Any, Any, Any, dict[str, np.ndarray]]:
    """Give engine, recipe, network, and its weights with running statistics."""
    recipe = load_recipe("digits", [*GIVEN, f"model.frozen=[{frozen}]"])
    plain = network_of(recipe.model.model_copy(update={"frozen": ()}))
    table, drawn = network_of(recipe.model), initial_weights(plain, recipe.model, seed=1)
    engine, recipe, network = small_network(name, *GIVEN, f"model.frozen=[{frozen}]", table=plain)
    loaded = randomize(network, plain, drawn)
    network = engine.build_network(table, recipe, accumulate=False)
    network.load_weights(loaded)
    return engine, recipe, network, loaded


@each_engine
@pytest.mark.medium
@pytest.mark.parametrize("frozen", FREEZINGS)
def test_losses_and_gradients_are_those_of_the_formulas_with_constants(name: str, frozen: str) -> None:
    engine, recipe, network, weights = _network(name, frozen)
    draw = np.random.default_rng(5)
    images, labels = draw.standard_normal((4, 3, 8, 8)).astype(np.float32), draw.integers(0, 10, 4)

    def loss(tensors: dict[str, np.ndarray]) -> float:
        forward = Forward(tensors, recipe.model.bn_epsilon, is_training=True, frozen=FREEZINGS[frozen])
        return float(smoothed_cross_entropy(resnet8(forward, images), labels, 0, "uniform").sum())

    batch = engine.from_host(images), engine.from_host(labels.astype(np.float32))
    found = engine.to_number(forward_backward(network, *batch))
    assert found == pytest.approx(loss(weights), rel=1e-4)
    trained = [each.name for each in network.parameters]
    assert trained == [each for each in weights if "moving" not in each and not each.startswith(FREEZINGS[frozen])]
    for tensor, gradient in zip(trained, map(engine.to_host, network.gradients), strict=True):
        direction = draw.standard_normal(gradient.shape) / gradient.size**0.5
        ends = [loss({**weights, tensor: weights[tensor] + step * direction}) for step in (1e-6, -1e-6)]
        slope = (ends[0] - ends[1]) / 2e-6
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-3, abs=2e-3), tensor


def test_a_classifier_that_is_frozen_is_taken_whole_or_refused(tmp_path: Path) -> None:
    recipe = load_recipe("digits", [*GIVEN, "model.frozen=[classifier]"])
    table = network_of(recipe.model)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in table.tensor_shapes.items()}
    np.savez(tmp_path / "same.npz", **arrays)
    np.savez(tmp_path / "other.npz", **arrays | {"classifier_bias": np.zeros(12, np.float32)})
    drawn = initial_weights(table, recipe.model, seed=1)
    assert load_parameters(tmp_path / "same.npz", table, drawn).keys() == arrays.keys()
    with pytest.raises(UserError, match="classifier_bias"):
        load_parameters(tmp_path / "other.npz", table, drawn)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("[stage1, stag2]", "got 'stag2', allowed: backbone, .*: stem, stage1, stage2, .*; did you mean 'stage2'"),
        ("[backbone, classifier]", "at least one must be trained"),
        ("[stage1_block]", "got 'stage1_block'"),
    ],
)
def test_a_layer_that_does_not_exist_or_too_many_are_refused_in_one_line(
    given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["digits", "--set", "model.parameters=any.ckpt", "--set", f"model.frozen={given}"]
    assert plan(["plan", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"error: model.frozen: .*{told}", line)


def test_a_plan_counts_what_is_frozen_without_gradients_memory_or_moments(capsys: pytest.CaptureFixture[str]) -> None:
    """The classifier of resnet20 has 650 numbers; its batch norms have 16 + 6 x 16 + 7 x 32 + 7 x 64 channels."""
    found = []
    for given in ("[]", "[backbone]"):
        words = ["digits", "--set", "model.parameters=any.ckpt", "--set", f"model.frozen={given}"]
        assert plan(["plan", *words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    whole, tuned = found
    assert (tuned["parameters"], tuned["gradient_bytes"]) == (650, 4 * 650)
    assert whole["parameters"] + 2 * 784 == tuned["parameters"] + tuned["frozen_numbers"]
    assert tuned["memory"]["activations_bytes"] < whole["memory"]["activations_bytes"] / 10
    assert (tuned["memory"]["optimizer_bytes"], whole["frozen_numbers"]) == (4 * 650, 0)
