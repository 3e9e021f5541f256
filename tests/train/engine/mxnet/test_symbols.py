"""oneDNN computes a step by its own kernels, where it has them, and not by its reference code; dropout drops."""

import os
import re
import sys
from typing import Literal

import mxnet as mx
import numpy as np
import pytest

from configs.registry import CAST_FLAGS
from configs.schema import EngineSettings, Model
from logs.environment import cpu_flags
from tests.programs import run_program
from train.engine.mxnet.symbols import Settings, layer_symbol
from train.networks.kinds import KINDS
from train.networks.layer import Layer

_STEP = """
from configs.load import load_both
from tests.engines import ALONE, forward_backward
from train.engine.protocol import open_engine
from train.networks.arch import network_of

for name, side in (("resnet8", 28), ("resnet20", 36)):
    recipe, cluster = load_both("digits", "laptop", [f"model.name={name}", f"model.image_size={side}"])
    engine = open_engine(cluster, ALONE)
    network = engine.build_network(network_of(recipe.model), recipe, accumulate=False)
    forward_backward(network, engine.zeros((4, *network.image_shape)), engine.zeros((4,)))
    engine.wait_all()
"""


@pytest.mark.ranks
@pytest.mark.skipif(not cpu_flags() >= CAST_FLAGS, reason="which kernels oneDNN has for other CPUs was not looked at")
def test_no_layer_of_a_small_resnet_is_computed_by_reference_code() -> None:
    """They end in a pool of a quarter of this side; 28 and 32 px took 2.4 times as long, and 36 px failed."""
    command, environment = [sys.executable, "-c", _STEP], {**os.environ, "DNNL_VERBOSE": "1"}
    done = run_program(*command, env=environment, check=True)
    kernels = set(
        re.findall(r"^dnnl_verbose,exec,cpu,(convolution|batch_normalization|pooling_v2),(\w+)", done.stdout, re.M)
    )
    assert {layer for layer, _ in kernels} >= {"convolution", "batch_normalization"}
    assert not [layer for layer, kernel in kernels if "ref" in kernel]


_PIXELS = np.array([[1, -2, 3, -4], [5, 6, -7, 8], [-9, 10, 11, 12], [13, -14, 15, 16]], np.float32)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kind", "padding", "expected"),
    [
        # Padding counts as zeros in an average, and never in a maximum.
        ("max_pool", 1, [[1, 3, -4], [5, 11, 12], [13, 15, 16]]),
        ("avg_pool", 1, [[0.25, 0.25, -1], [-1, 5, 5], [3.25, 0.25, 4]]),
        ("global_pool", 0, [[4.0]]),
    ],
)
def test_pools_of_both_layouts_are_those_of_arithmetic(
    layout: Literal["NCHW", "NHWC"], kind: str, padding: int, expected: list[list[float]]
) -> None:
    whole = kind == "global_pool"
    row = Layer("pool", KINDS[kind], ("data",), 1, 1, 4, len(expected), 1 if whole else 2, 1 if whole else 2, padding)
    model = Model(name="resnet8", num_classes=10, image_size=8)
    symbol = layer_symbol(row, [mx.sym.Variable("data")], Settings(model, EngineSettings(layout=layout)))
    shape = (1, 1, 4, 4) if layout == "NCHW" else (1, 4, 4, 1)
    (found,) = symbol.eval(ctx=mx.cpu(), data=mx.nd.array(_PIXELS.reshape(shape)))
    np.testing.assert_allclose(found.asnumpy().reshape(len(expected), -1), expected, rtol=1e-6)


@pytest.mark.parametrize("side", [5, 8, 9])
def test_a_global_pool_of_any_size_is_the_mean_with_the_gradient_of_one(side: int) -> None:
    row = Layer("pool", KINDS["global_pool"], ("data",), 3, 3, side, 1, 1, 1, 0)
    model = Model(name="resnet8", num_classes=10, image_size=8)
    data = mx.nd.random.uniform(shape=(2, 3, side, side))
    held = {"data": data}, {"data": mx.nd.zeros_like(data)}
    pool = layer_symbol(row, [mx.sym.Variable("data")], Settings(model, EngineSettings())).bind(mx.cpu(), *held)
    (found,) = pool.forward(is_train=True)
    pool.backward(mx.nd.ones_like(found))
    np.testing.assert_allclose(found.asnumpy(), data.asnumpy().mean(axis=(2, 3), keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(held[1]["data"].asnumpy(), np.full(data.shape, 1 / side**2), rtol=1e-5)
