"""oneDNN computes a step by its own kernels, where it has them, and not by its reference code; dropout drops."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import mxnet as mx
import pytest

from configs.load import ROOT
from configs.registry import CAST_FLAGS
from configs.schema import EngineSettings, Model
from logs.environment import cpu_flags
from train.engine.mxnet.symbols import layer_symbol
from train.networks.arch import Layer

_STEP = """
import sys
from configs.load import load_both
from tests.engines import ALONE, forward_backward
from train.engine.protocol import open_engine
from train.networks.arch import network_of

recipe, cluster = load_both("digits", "laptop", ["model.name=resnet8", f"model.image_size={sys.argv[1]}"])
engine = open_engine(cluster, ALONE)
network = engine.build_network(network_of(recipe.model), recipe, accumulate=False)
forward_backward(network, engine.zeros((4, *network.image_shape)), engine.zeros((4,)))
engine.wait_all()
"""


@pytest.mark.ranks
@pytest.mark.skipif(not cpu_flags() >= CAST_FLAGS, reason="which kernels oneDNN has for other CPUs was not looked at")
@pytest.mark.parametrize("side", [8, 16, 28, 32])
def test_no_layer_of_a_small_resnet_is_computed_by_reference_code(side: int) -> None:
    """`resnet8` ends in a pool of a quarter of this side; 28 and 32 px took 2.4 times as long."""
    command = [sys.executable, "-c", _STEP, str(side)]
    environment = {**os.environ, "DNNL_VERBOSE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    kernels = set(
        re.findall(r"^dnnl_verbose,exec,cpu,(convolution|batch_normalization|pooling_v2),(\w+)", done.stdout, re.M)
    )
    assert {layer for layer, _ in kernels} == {"convolution", "batch_normalization", "pooling_v2"}
    assert not [layer for layer, kernel in kernels if "ref" in kernel]


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_dropout_drops_the_share_of_its_rate_in_training_and_keeps_the_mean(rate: float) -> None:
    row = Layer("drop", "dropout", ("data",), 4, 4, 8, 8, rate=rate)
    model = Model(name="resnet8", num_classes=10, image_size=8)
    symbol = layer_symbol(row, [mx.sym.Variable("data", dtype="float32")], model, EngineSettings())
    drop = mx.gluon.SymbolBlock(symbol, [mx.sym.Variable("data", dtype="float32")])
    ones = mx.nd.ones((100, 100))
    with mx.autograd.record():
        dropped = drop(ones).asnumpy()
    assert (dropped == 0).mean() == pytest.approx(rate, abs=0.03)
    assert dropped.mean() == pytest.approx(1, abs=0.1)
    assert (drop(ones) == ones).asnumpy().all()
