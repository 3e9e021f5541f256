"""GoogLeNet computes what its paper says, in NumPy written from the paper."""

import numpy as np
import pytest

from tests.engines import each_engine, random_batch, randomize, small_network
from tests.forward import Forward, googlenet


@pytest.mark.slow
@each_engine
def test_logits_are_those_of_the_paper(name: str) -> None:
    given = "model.name=googlenet", "model.image_size=64", "model.classifier_std=0.5"
    engine, _, network = small_network(name, *given)
    tensors = randomize(network, network.network, network.read_weights())
    images, _ = random_batch(engine, network, size=2)
    ours, expected = engine.to_host(network.inference()(images)), googlenet(Forward(tensors), engine.to_host(images))
    assert np.abs(ours - expected).max() <= 1e-4 * expected.std()
    # The comparison is worth something: images differ, and they move the logits more than the classifier's bias does.
    assert np.abs(expected[0] - expected[1]).max() > 0.05 * expected.std()
    assert expected.std() > 2 * tensors["classifier_bias"].std()
