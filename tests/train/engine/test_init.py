"""Seeded weights: the right distributions, the same everywhere, and a checksum that notices one bit."""

import hashlib

import numpy as np
import pytest

from configs.schema import Model
from train.engine.init import RanksDiffer, checksum, initial_weights, require_equal
from train.networks.arch import build_network

MODEL = Model(name="resnet20", num_classes=10, image_size=32)
NETWORK = build_network("resnet20", num_classes=10, image_size=32)


@pytest.mark.parametrize(("given", "last"), [({}, 1), ({"last_gamma": 1.4}, 1.4), ({"zero_gamma": True}, 0)])
def test_the_last_batch_norm_of_each_block_alone_has_the_last_gamma(given: dict[str, float], last: float) -> None:
    weights = initial_weights(NETWORK, MODEL.model_copy(update=given), seed=1)
    for name, array in weights.items():
        if name.endswith("_gamma"):
            assert (array == np.float32(last if "_conv2_" in name else 1)).all(), name


def test_lecun_uniform_fills_its_range_evenly_from_the_tensors_own_stream() -> None:
    """TensorFlow's variance_scaling_initializer(scale=1, mode="fan_in", distribution="uniform")."""
    model = MODEL.model_copy(update={"initial_kernels": "lecun_uniform"})
    weights, normal = initial_weights(NETWORK, model, seed=1), initial_weights(NETWORK, MODEL, seed=1)
    drawn, limit = weights["stage3_block2_conv1_weight"], (3 / (64 * 9)) ** 0.5
    assert -limit <= drawn.min() < -0.999 * limit
    assert 0.999 * limit < drawn.max() <= limit
    assert np.histogram(drawn, bins=8)[0] == pytest.approx([drawn.size / 8] * 8, rel=0.05)
    assert not np.array_equal(drawn[0], weights["stage3_block3_conv1_weight"][0])
    np.testing.assert_array_equal(weights["classifier_weight"], normal["classifier_weight"])


def test_the_classifiers_bias_starts_where_the_recipe_says_and_no_other_does() -> None:
    table = build_network("mnist_small_cnn", num_classes=10, image_size=28)
    model = MODEL.model_copy(update={"classifier_bias": -6.9})
    weights = initial_weights(table, model, seed=1)
    biases = {name: float(array[0]) for name, array in weights.items() if name.endswith("_bias")}
    assert biases == {"conv1_bias": 0.0, "dense1_bias": 0.0, "classifier_bias": pytest.approx(-6.9)}


def test_a_tensor_is_drawn_from_the_stream_that_its_name_and_the_seed_make() -> None:
    """Any other derivation would be as random, and no recorded run would repeat."""
    weights = initial_weights(NETWORK, MODEL, seed=5)
    for name, std in (("stem_weight", (2 / 27) ** 0.5), ("classifier_weight", 0.01)):
        key = hashlib.blake2b(f"5/weights/{name}".encode(), digest_size=16).digest()
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        drawn = stream.standard_normal(weights[name].shape, np.float32) * np.float32(std)
        np.testing.assert_array_equal(weights[name], drawn, name)


def test_the_checksum_notices_arrays_that_have_swapped_their_names_and_one_bit() -> None:
    one, two = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    assert checksum([("a", one), ("b", two)]) != checksum([("b", one), ("a", two)])
    assert checksum([("a", one), ("b", two)]) != checksum([("a", two), ("b", one)])
    weights = initial_weights(NETWORK, MODEL, seed=1)
    before = checksum(weights.items())
    weights["classifier_bias"].view(np.uint32)[3] ^= 1
    assert checksum(weights.items()) != before


def test_ranks_that_differ_are_named() -> None:
    require_equal([7, 7, 7], "before the run")
    with pytest.raises(RanksDiffer, match=r"weights .* before the run: rank 1, 3 differ from the other 3 of 5"):
        require_equal([7, 9, 7, 8, 7], "before the run")
