"""Frozen layers: the network of the formulas whose frozen tensors are constants, under every engine and optimizer."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_recipe
from configs.optimizers import HyperParameters
from tests.engines import BOTH, each_engine, forward_backward, randomize, small_network
from tests.forward import Forward, resnet8
from tests.oracles import smoothed_cross_entropy
from train.engine.build import build_optimizer
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
OPTIMIZERS = {
    "mxnet": ["lars", "sgd", "adam"],
    "torch": ["lars", "sgd", "adam", "shampoo"],
}
STEPPED = [
    pytest.param(*each.values, layout, precision, optimizer, marks=each.marks)
    for each in BOTH
    for layout, precision in (("NCHW", "float32"), ("NHWC", "bfloat16"))
    if layout == "NCHW" or each.values[0] == "torch"  # which MXNet has on GPUs alone
    for optimizer in OPTIMIZERS[str(each.values[0])]
]


def _network(name: str, frozen: str, *overrides: str, **settings: Any) -> tuple[Any, Any, Any, dict[str, np.ndarray]]:
    """Give engine, recipe, network, and its weights with running statistics."""
    recipe = load_recipe("digits", [*GIVEN, f"model.frozen=[{frozen}]"])
    plain = network_of(recipe.model.model_copy(update={"frozen": ()}))
    table, drawn = network_of(recipe.model), initial_weights(plain, recipe.model, seed=1)
    given = [*GIVEN, f"model.frozen=[{frozen}]", *overrides]
    engine, recipe, network = small_network(name, *given, table=plain, **settings)
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


@pytest.mark.medium
@pytest.mark.parametrize(("name", "layout", "precision", "optimizer"), STEPPED)
def test_frozen_tensors_keep_their_bits_and_all_others_move(
    name: str, layout: str, precision: str, optimizer: str
) -> None:
    frozen = "stage2, stage3_block1_conv2, classifier"
    given = f"optimizer={{name: {optimizer}, weight_decay: 0.1}}"
    engine, recipe, network, weights = _network(name, frozen, given, layout=layout, precision=precision)
    made, draw = build_optimizer(engine, recipe.optimizer, network, rescale=1 / 4), np.random.default_rng(5)
    for step in range(2):
        images = engine.from_host(draw.standard_normal((4, *network.image_shape)).astype(np.float32))
        forward_backward(network, images, engine.from_host(draw.integers(0, 10, 4).astype(np.float32)))
        made.update(HyperParameters(0.1, 0.9, 0.1, step))
        network.inference()(images)
    left = {**network.read_weights(), **network.read_statistics()}
    assert left.keys() == weights.keys()
    kept = {each for each in weights if left[each].tobytes() == weights[each].tobytes()}
    assert kept == {each for each in weights if each.startswith(FREEZINGS[frozen])}
    trained = sum(left[each.name].size for each in network.parameters)
    assert sum(each.size for each in map(engine.to_host, made.momenta)) >= trained
    if optimizer != "shampoo":
        assert sum(each.size for each in map(engine.to_host, made.momenta)) in (trained, 2 * trained)


def test_a_classifier_that_is_frozen_is_taken_whole_or_refused(tmp_path: Path) -> None:
    recipe = load_recipe("digits", [*GIVEN, "model.frozen=[classifier]"])
    table = network_of(recipe.model)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in table.tensor_shapes.items()}
    np.savez(tmp_path / "same.npz", **arrays)
    np.savez(tmp_path / "other.npz", **arrays | {"classifier_bias": np.zeros(12, np.float32)})
    drawn = initial_weights(table, recipe.model, seed=1)
    assert load_parameters(tmp_path / "same.npz", table, drawn, lambda _: {}).keys() == arrays.keys()
    with pytest.raises(UserError, match="classifier_bias"):
        load_parameters(tmp_path / "other.npz", table, drawn, lambda _: {})


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
