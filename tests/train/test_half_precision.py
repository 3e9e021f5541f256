"""The GPU path as far as a CPU can judge it: types and layouts by inference, masters, the update; the rest on a GPU."""

from __future__ import annotations

import json
from typing import Literal

import mxnet as mx
import numpy as np
import pytest

from configs.load import load_cluster, load_recipe
from configs.schema import EngineSettings, Lars, Loss, Model
from tests.engines import ALONE, forward_backward
from tests.oracles import LarsOracle
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts
from train.engine.init import checksum, initial_weights
from train.engine.mxnet.folding import folded_symbol
from train.engine.mxnet.lars import MomentumOptimizer
from train.engine.mxnet.network import TrainedNetwork
from train.engine.mxnet.symbols import logits_symbol
from train.engine.protocol import open_engine
from train.networks.arch import build_network
from train.schedule import HyperParameters
from train.warmup import warm_up

RECIPE, CLUSTER = load_recipe("abci-b86016"), load_cluster("abci-v100")
TABLE = build_network("resnet50", num_classes=1000, image_size=224, input_channels=4)
TWO = BucketPlan(((0,), (1,)))
SMALL = Model(name="resnet8", num_classes=10, image_size=16, input_channels=4)
HALF = EngineSettings(precision="float16", layout="NHWC")
RATES = [0.1, 0.2, 0.15]


def _small(engine: EngineSettings, *, accumulate: bool = False, context: object = None) -> TrainedNetwork:
    table = build_network("resnet8", num_classes=10, image_size=16, input_channels=4)
    network = TrainedNetwork(
        table, model=SMALL, loss=Loss(), engine=engine, context=context or mx.cpu(), accumulate=accumulate
    )
    network.load_weights(initial_weights(table, SMALL, seed=1))
    return network


def test_every_operator_of_the_record_has_the_type_and_layout_that_its_gpus_want() -> None:
    symbol = logits_symbol(TABLE, RECIPE.model, CLUSTER.engine)
    _, (output,), statistics = symbol.infer_type(data="float32")
    assert output is np.float32
    assert set(statistics) == {np.float32}
    inside = symbol.get_internals()
    types = dict(zip(inside.list_outputs(), inside.infer_type(data="float32")[1], strict=True))
    shapes = dict(zip(inside.list_outputs(), inside.infer_shape(data=(42, 224, 224, 4))[1], strict=True))
    for layer in TABLE.layers[:-1]:
        assert types[f"{layer.name}_output"] is np.float16, layer.name
        assert shapes[f"{layer.name}_output"] == (42, layer.out_size, layer.out_size, layer.out_channels)
    for parameter in TABLE.parameters:
        in_half = parameter.kind in ("weight", "bias")
        assert types[parameter.name] is (np.float16 if in_half else np.float32), parameter.name
        out, *window = parameter.shape
        if len(window) == 3:
            assert shapes[parameter.name] == (out, *window[1:], window[0])
    assert sum(types[each.name] is np.float16 for each in TABLE.parameters) == 55


@pytest.mark.parametrize("cluster", ["abci-v100", "dgx-a100", "a100-node"])
def test_evaluation_on_a_gpu_has_no_batch_norm_and_stays_in_float16(cluster: str) -> None:
    # Stock MXNet gives cuDNN N H W images in a spatial batch norm of NHWC, and cuDNN takes 65,535 of them in inference.
    engine = load_cluster(cluster).engine
    assert engine.layout == "NHWC"
    symbol = folded_symbol(TABLE, RECIPE.model, engine)
    operators = [node["op"] for node in json.loads(symbol.tojson())["nodes"]]
    assert "BatchNorm" not in operators
    assert "Convolution" in operators
    _, (output,), statistics = symbol.infer_type(data="float32")
    assert (output, statistics) == (np.float32, [])
    inside = symbol.get_internals()
    shapes = dict(zip(inside.list_outputs(), inside.infer_shape(data=(42, 224, 224, 4))[1], strict=True))
    types = dict(zip(inside.list_outputs(), inside.infer_type(data="float32")[1], strict=True))
    for layer in TABLE.layers[:-1]:
        if layer.kind != "bn":
            assert types[f"{layer.name}_output"] is np.float16, layer.name
            assert shapes[f"{layer.name}_output"] == (42, layer.out_size, layer.out_size, layer.out_channels)


@pytest.mark.slow
def test_the_record_holds_161_tensors_whose_float32_masters_are_the_seeded_weights() -> None:
    network = TrainedNetwork(
        TABLE, model=RECIPE.model, loss=RECIPE.loss, engine=CLUSTER.engine, context=mx.cpu(), accumulate=False
    )
    weights = initial_weights(TABLE, RECIPE.model, seed=3)
    network.load_weights(weights)
    assert len(network.weights) == 161
    assert {master.dtype for master in network.masters} == {np.float32}
    assert checksum(network.each_weight()) == checksum(weights.items())


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_both_layouts_and_precisions_begin_with_the_same_weights(precision: Literal["float32", "float16"]) -> None:
    engines = EngineSettings(precision=precision, layout="NCHW"), EngineSettings(precision=precision, layout="NHWC")
    networks = [_small(engine) for engine in engines]
    first, second = (checksum(network.each_weight()) for network in networks)
    assert first == second == checksum(initial_weights(networks[0].network, SMALL, seed=1).items())
    stored = [network.weights[0].asnumpy().astype(np.float32) for network in networks]
    np.testing.assert_array_equal(stored[0].transpose(0, 2, 3, 1), stored[1])


@pytest.mark.parametrize("accumulates", [False, True], ids=["float16 gradients", "float32 sums"])
def test_the_update_follows_the_paper_on_the_masters(accumulates: bool) -> None:
    network = _small(HALF, accumulate=accumulates)
    config = Lars(name="lars", momentum=0.9, weight_decay=1e-4, trust_coefficient=0.01, epsilon=1e-9)
    optimizer = MomentumOptimizer(
        config, network.parameters, weights=network.weights, gradients=network.gradients, masters=network.masters,
        rescale=1 / 8,
    )  # fmt: skip
    before = [master.asnumpy() for master in network.masters]
    random, history = np.random.default_rng(5), []
    for lr in RATES:
        for gradient in network.gradients:
            gradient[:] = random.standard_normal(gradient.shape)
        history.append([gradient.asnumpy().astype(np.float32) / 8 for gradient in network.gradients])
        optimizer.update(HyperParameters(lr, 0.9, 1e-4))
    for index, parameter in enumerate(network.parameters):
        decays = 1e-4 if parameter.kind == "weight" else 0.0
        oracle = LarsOracle(0.9, decays, 0.01, 1e-9, decays, has_trust_ratio=parameter.kind == "weight")
        moved = oracle.steps(before[index], [step[index] for step in history], RATES) - before[index]
        ours = network.masters[index].asnumpy()
        # A CPU squares float16 numbers in float16 for the norms; a GPU does it in float32.
        np.testing.assert_allclose(ours - before[index], moved, rtol=1e-3, atol=2e-7, err_msg=parameter.name)
        weight = network.weights[index]
        np.testing.assert_allclose(weight.asnumpy(), ours.astype(weight.dtype), rtol=1e-3)  # one bit: CPUs round up


def test_an_update_too_small_for_float16_is_kept_by_the_master() -> None:
    network = _small(HALF)
    optimizer = MomentumOptimizer(
        Lars(name="lars", weight_decay=0.0, trust_coefficient=1e-5), network.parameters, weights=network.weights,
        gradients=network.gradients, masters=network.masters, rescale=1.0,
    )  # fmt: skip
    first = network.weights[0].asnumpy(), network.masters[0].asnumpy()
    network.gradients[0][:] = 1
    for _ in range(3):
        optimizer.update(HyperParameters(0.1, 0.0, 0.0))
    assert np.mean(network.weights[0].asnumpy() == first[0]) > 0.95
    assert np.all(network.masters[0].asnumpy() < first[1])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_step_in_float16_on_a_gpu_agrees_with_float32_on_a_cpu(
    layout: Literal["NCHW", "NHWC"], accumulate: bool
) -> None:
    random = np.random.default_rng(0)
    images = random.standard_normal((8, 4, 16, 16), np.float32)
    labels = random.integers(0, 10, 8)
    engine = EngineSettings(precision="float16", layout=layout)
    found = []
    for network, context in (
        (_small(EngineSettings()), mx.cpu()),
        (_small(engine, accumulate=accumulate, context=mx.gpu()), mx.gpu()),
    ):
        is_nhwc = context == mx.gpu() and layout == "NHWC"
        batch = mx.nd.array(images.transpose(0, 2, 3, 1) if is_nhwc else images, ctx=context)
        network.zero_gradients()
        forward_backward(network, batch, mx.nd.array(labels, ctx=context))
        optimizer = MomentumOptimizer(
            Lars(name="lars", weight_decay=1e-4, trust_coefficient=0.01), network.parameters, weights=network.weights,
            gradients=network.gradients, masters=network.masters, rescale=1 / 8,
        )  # fmt: skip
        before = network.read_weights()
        optimizer.update(HyperParameters(0.1, 0.9, 1e-4))
        found.append({name: array - before[name] for name, array in network.read_weights().items()})
    for name, moved in found[0].items():
        assert np.linalg.norm(found[1][name] - moved) < 0.05 * np.linalg.norm(moved) + 1e-6, name


@pytest.mark.gpu
def test_a_warm_up_in_float16_leaves_masters_weights_and_statistics_as_they_were() -> None:
    network = _small(HALF, context=mx.gpu())
    optimizer = MomentumOptimizer(
        Lars(name="lars", weight_decay=1e-4), network.parameters, weights=network.weights,
        gradients=network.gradients, masters=network.masters, rescale=1 / 8,
    )  # fmt: skip
    weights = initial_weights(network.network, SMALL, seed=1)
    before = [array.asnumpy() for array in (*network.weights, *network.statistics)]
    gpu = open_engine(load_cluster("laptop").model_copy(update={"device": "gpu", "engine": HALF}), ALONE)
    warm_up(gpu, ModelParts(network, optimizer, weights, TWO), SingleProcess(), 8)
    after = [array.asnumpy() for array in (*network.weights, *network.statistics)]
    assert all(one.tobytes() == other.tobytes() for one, other in zip(before, after, strict=True))
    assert checksum(network.each_weight()) == checksum(weights.items())
    assert not any(momentum.asnumpy().any() for momentum in optimizer.momenta)
