"""ResNet-50, a small ResNet and GoogLeNet compute what their papers say, in NumPy written from the papers."""

import numpy as np
import pytest

from tests import forward
from tests.engines import each_engine, random_batch, randomize, small_network
from tests.forward import Forward

SIZES = {"resnet50": 64, "resnet8": 16, "googlenet": 64, "resnext50_32x4d": 64}


def _opened(name: str, network_name: str, *overrides: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Give tensors of which each number matters, images, and the logits of both; no layer's output dies."""
    given = f"model.name={network_name}", f"model.image_size={SIZES[network_name]}", "model.classifier_std=0.5"
    engine, _, network = small_network(name, *given, *overrides)
    tensors = randomize(network, network.network, network.read_weights())
    images, _ = random_batch(engine, network, size=2)
    return tensors, engine.to_host(images), engine.to_host(network.inference()(images))


@pytest.mark.slow
@each_engine
@pytest.mark.parametrize("network_name", SIZES)
def test_logits_are_those_of_the_paper(name: str, network_name: str) -> None:
    tensors, images, ours = _opened(name, network_name)
    expected = getattr(forward, network_name)(Forward(tensors), images)
    assert np.abs(ours - expected).max() <= 1e-4 * expected.std()
    # The comparison is worth something: images differ, and they move the logits more than the classifier's bias does.
    assert np.abs(expected[0] - expected[1]).max() > 0.05 * expected.std()
    assert expected.std() > 2 * tensors["classifier_bias"].std()
