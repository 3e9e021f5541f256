"""Stochastic depth: each image leaves out a block's branch by itself, by the linear rule, and the mean stays."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.load import load_both, load_recipe
from tests.engines import ALONE, BOTH, forward_backward
from train.engine.protocol import open_engine
from train.networks.arch import Network, build_network, network_of

RATE, SEEDS = 0.6, 100
SHARES = np.array([0.2, 0.4, 0.6])
"""By how much the three blocks of resnet8 are left out: l / 3 of the rate."""
BRANCH = np.array([0.7, 1.1, 1.7])
"""What the branch of each block adds, in a channel of its own."""
CLASSIFIER = np.pad(np.array([[1.0, 0.4, -0.3], [-0.2, 0.9, 0.8]]), ((0, 8), (0, 61)))
"""Weights with which the logits of the first two classes tell the branches apart."""
LABELS = np.array([0, 1])

PLACES = [
    *(pytest.param(*each.values, {}, marks=each.marks) for each in BOTH),
    pytest.param("torch", {"layout": "NHWC", "batch_norm": "fused"}, marks=BOTH[1].marks),
]


def _table() -> Network:
    frozen = ("stem", "stage1", "stage2", "stage3_block1_conv1", "stage3_block1_projection")
    return build_network("resnet8", num_classes=10, image_size=8, frozen=frozen, stochastic_depth=RATE)


def _weights(table: Network) -> dict[str, np.ndarray]:
    """Give weights with which the branch of each block is a constant in a channel of its own.

    All convolutions are 0 but the projections, which pass their channels on, and so is every gamma but theirs. Frozen
    batch norms, and those of constants, pass on their beta.
    """
    made = {name: np.zeros(shape, np.float32) for name, shape in table.tensor_shapes.items()}
    for name, values in made.items():
        if name.endswith("moving_var"):
            values[:] = 1 - 1e-5  # a standard deviation of 1 with epsilon
        if name.endswith("projection_weight"):
            values[:] = np.eye(values.shape[0], values.shape[1]).reshape(values.shape)
        if name.endswith("projection_bn_gamma"):
            values[:] = 1
    made["classifier_weight"][:] = CLASSIFIER
    for stage, value in enumerate(BRANCH):
        made[f"stage{stage + 1}_block1_conv2_bn_beta"][stage] = value
    return made


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "settings"), PLACES)
def test_each_image_leaves_out_branches_by_itself_as_often_as_the_linear_rule_says(
    name: str, settings: dict[str, Any]
) -> None:
    recipe, cluster = load_both("digits", "laptop", [f"cluster.engine.name={name}", "loss.label_smoothing=0"])
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update=settings)})
    engine, table = open_engine(cluster, ALONE), _table()
    network: Any = engine.build_network(table, recipe, accumulate=False)
    network.load_weights(_weights(table))
    images = engine.from_host(np.ones((2, *network.image_shape), np.float32))
    beta = next(at for at, each in enumerate(network.parameters) if each.name == "stage3_block1_conv2_bn_beta")
    # The factors of the branches of both images in all ways, and the loss that each of these has.
    ways = np.array([*product(*[(0, factor) for factor in 1 / (1 - SHARES)] * 2)]).reshape(-1, 2, 3)
    logits = ways * BRANCH @ CLASSIFIER[:, :3].T
    losses = -np.log(_softmax(logits)[:, [0, 1], LABELS]).sum(axis=1)
    assert np.diff(np.sort(losses)).min() > 1e-3, "a loss tells which branches were left out"
    taken = []
    for seed in range(SEEDS):
        network.seed(seed)
        loss = engine.to_number(forward_backward(network, images, engine.from_host(LABELS.astype(np.float32))))
        way = int(np.abs(losses - loss).argmin())
        assert loss == pytest.approx(losses[way], abs=2e-5)
        # A branch that is left out for an image gets no gradient from it, and one that stays gets more.
        expected = ((_softmax(logits[way]) - np.eye(10)[LABELS]) @ CLASSIFIER[:, 2]) @ ways[way][:, 2]
        assert engine.to_host(network.gradients[beta])[2] == pytest.approx(expected, abs=1e-4)
        taken.append(ways[way] == 0)
    network.seed(seed)
    assert engine.to_number(network.forward(images, engine.from_host(LABELS.astype(np.float32)))) == loss
    dropped = np.array(taken)
    # Four standard deviations of a share of 200 draws, and three of one of 100.
    assert np.abs(dropped.mean(axis=(0, 1)) - SHARES).max() < 0.14
    assert dropped.all(axis=1).mean(axis=0) == pytest.approx(SHARES**2, abs=0.14)
    whole = engine.to_host(network.inference()(images))
    np.testing.assert_allclose(whole, [CLASSIFIER[:, :3] @ BRANCH] * 2, atol=1e-5)


@pytest.mark.parametrize(("network", "depth"), [("resnet50", 16), ("mobilenet_v2", 10)])
def test_rates_rise_from_block_to_block_and_without_one_the_network_is_the_same(network: str, depth: int) -> None:
    plain = build_network(network, num_classes=10, image_size=32)
    off, on = (build_network(network, num_classes=10, image_size=32, stochastic_depth=rate) for rate in (0.0, 0.16))
    assert plain == off
    assert (on.parameters, on.macs) == (plain.parameters, plain.macs)
    rates = [layer.rate for layer in on.layers if layer.kind.name == "stochastic_depth"]
    assert rates == pytest.approx([0.16 * (number + 1) / depth for number in range(depth)])


def test_it_is_refused_in_a_network_without_residual_blocks() -> None:
    recipe = load_recipe("digits", ["model.name=googlenet", "model.stochastic_depth=0.1"])
    with pytest.raises(ConfigError, match=r"model\.stochastic_depth: got 0\.1, allowed: 0 for googlenet"):
        network_of(recipe.model)
