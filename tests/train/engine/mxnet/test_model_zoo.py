"""MXNet's networks compute what Gluon's model zoo computes with the same parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import random_batch, small_network
from train.engine.parameters import load_parameters

mx = pytest.importorskip("mxnet")
from mxnet.gluon.model_zoo import vision


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("alexnet", 67), ("densenet121", 224)])
def test_logits_equal_those_of_the_model_zoo_with_the_zoos_parameters(name: str, size: int, tmp_path: Path) -> None:
    engine, _, network = small_network("mxnet", f"model.name={name}", f"model.image_size={size}")
    images, _ = random_batch(engine, network, size=2)
    zoo = getattr(vision, name)(classes=10)
    zoo.initialize(mx.init.MSRAPrelu())
    zoo(images)
    _fill(zoo)
    theirs = zoo(images).asnumpy()
    zoo.save_parameters(str(tmp_path / "zoo.params"))
    network.load_weights(load_parameters(tmp_path / "zoo.params", network.network, {}))
    np.testing.assert_allclose(network.inference()(images).asnumpy(), theirs, rtol=1e-4, atol=1e-4 * theirs.std())
    _require_that_it_says_something(zoo, images, theirs)


def _fill(zoo: Any) -> None:
    """Draw what the zoo leaves at 0 or 1 so that the signal lives: means near 0, scales near 1."""
    mx.random.seed(6)
    for name, each in zoo.collect_params().items():
        if name.endswith(("running_var", "gamma")):
            each.set_data(mx.nd.random.uniform(0.5, 1.5, each.shape))
        elif name.endswith(("running_mean", "beta", "bias")):
            each.set_data(mx.nd.random.normal(0, 0.2, each.shape))


def _require_that_it_says_something(zoo: Any, images: Any, logits: np.ndarray) -> None:
    """See that logits are not the classifier's bias, differ between images, and follow the weights of early layers."""
    parameters = zoo.collect_params()
    bias = next(each for name, each in reversed(parameters.items()) if name.endswith("bias")).data().asnumpy()
    assert np.abs(logits - bias).mean() > 0.1 * logits.std()
    assert np.abs(logits[0] - logits[1]).max() > 0.01 * logits.std(), "a hundred times what is forgiven"
    weights = [each for name, each in parameters.items() if name.endswith("weight")]
    for weight in weights[: -1 : len(weights) // 2]:
        weight.set_data(2 * weight.data())
        assert np.abs(zoo(images).asnumpy() - logits).max() > 0.01 * logits.std(), weight.name
        weight.set_data(weight.data() / 2)
