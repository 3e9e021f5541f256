"""The GPU path as far as a CPU can judge it: types and layouts by inference, masters, the update; the rest on a GPU."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import mxnet as mx
import numpy as np
import pytest

from configs.load import ROOT, load_cluster, load_recipe
from configs.schema import EngineSettings, Lars, Loss, Model
from tests.engines import ALONE, forward_backward
from tests.oracles import LarsOracle
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts
from train.engine.init import checksum, initial_weights
from train.engine.mxnet import symbols
from train.engine.mxnet.folding import folded_symbol
from train.engine.mxnet.lars import MomentumOptimizer
from train.engine.mxnet.network import TrainedNetwork
from train.engine.mxnet.symbols import logits_symbol
from train.engine.protocol import open_engine
from train.networks.arch import Network, build_network
from train.networks.limits import INFERENCE_ROWS, TENSOR_ELEMENTS, TRAINING_ROWS, batch_norm_rows
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
    symbol = logits_symbol(TABLE, RECIPE.model, CLUSTER.engine, 1)
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


GPU_RECIPES = sorted(
    path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml")
    if "resnet50" in path.read_text(encoding="utf-8") and path.stem != "imagenet-smoke"
)  # fmt: skip


def _largest_batch(recipe: str) -> int:
    """Return the images of a rank: the span of batch norm, or the share of one of four ranks."""
    batch = load_recipe(recipe).batch
    return batch.bn_span or batch.global_size // 4


def _tensors(symbol: Any, shape: tuple[int, ...]) -> Iterator[tuple[str, str, dict[str, str], tuple[int, ...]]]:
    """Yield operator, name, attributes and shape of the first input, or else output, of every node."""
    inside = symbol.get_internals()
    known = dict(zip(inside.list_outputs(), inside.infer_shape(data=shape)[1], strict=True))
    nodes = json.loads(symbol.tojson())["nodes"]
    names = [node["name"] if node["op"] == "null" else f"{node['name']}_output" for node in nodes]
    for node, name in zip(nodes, names, strict=True):
        first = names[node["inputs"][0][0]] if node["inputs"] else name
        yield node["op"], node["name"], node.get("attrs", {}), known.get(first, ())
        yield "tensor", node["name"], {}, known.get(name, ())


@pytest.mark.medium
@pytest.mark.parametrize("cluster", ["abci-v100", "dgx-a100", "a100-node"])
def test_no_operator_of_a_shipped_recipe_meets_a_limit_of_the_gpu_libraries(cluster: str) -> None:
    engine = load_cluster(cluster).engine
    # Many recipes are alike in what operators see: each such network is built once.
    cases = {(repr(load_recipe(name).model), _largest_batch(name)): name for name in GPU_RECIPES}
    for (_, images), recipe in cases.items():
        _check_limits(load_recipe(recipe).model, engine, images)


def _check_limits(model: Model, engine: EngineSettings, images: int) -> None:
    table = build_network(model.name, num_classes=1000, image_size=224, input_channels=model.input_channels)
    axes = {"N": images, "C": model.input_channels, "H": 224, "W": 224}
    shape = tuple(axes[axis] for axis in engine.layout)
    phases = {
        TRAINING_ROWS: logits_symbol(table, model, engine, images),
        INFERENCE_ROWS: folded_symbol(table, model, engine),
    }
    for most_rows, symbol in phases.items():
        num_norms = 0
        for operator, name, attributes, sides in _tensors(symbol, shape):
            assert math.prod(sides) <= TENSOR_ELEMENTS, name
            if operator == "BatchNorm":
                channel_is_last = attributes["axis"] == str(len(sides) - 1)
                assert sides[0] * (math.prod(sides[1:-1]) if channel_is_last else 1) <= most_rows, name
                num_norms += 1
        assert num_norms == (53 if most_rows == TRAINING_ROWS else 0)


def test_a_large_batch_norm_of_nhwc_is_the_same_in_nchw(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build_network("resnet8", num_classes=10, image_size=16).layers[1]
    assert layer.kind == "bn"
    table = Network("one", 16, layer.out_channels, 10, (replace(layer, inputs=("data",)),))
    random = np.random.default_rng(0)
    images = mx.nd.array(random.standard_normal((6, 16, 16, layer.out_channels), np.float32))
    results = {}
    for rows in (6 * 16 * 16, 6 * 16 * 16 - 1):
        monkeypatch.setattr(symbols, "TRAINING_ROWS", rows)
        engine = EngineSettings(layout="NHWC")
        symbol = logits_symbol(table, SMALL, engine, 6)
        has_transposes = "transpose" in symbol.tojson()
        block = mx.gluon.SymbolBlock(symbol, [mx.sym.Variable("data", dtype="float32")])
        block.initialize(mx.init.One())
        images.attach_grad()
        with mx.autograd.record():
            output = block(images)
            (output * output * images).sum().backward()
        gradients = [each.grad().asnumpy() for each in block.collect_params().values() if each.grad_req != "null"]
        moments = [each.data().asnumpy() for each in block.collect_params().values()]
        results[has_transposes] = [output.asnumpy(), images.grad.asnumpy(), *gradients, *moments]
    for plain, transposed in zip(results[False], results[True], strict=True):
        np.testing.assert_allclose(plain, transposed, rtol=1e-4, atol=1e-4)


def test_an_engine_transposes_only_what_its_batch_makes_too_large() -> None:
    def transposed(images: int, layout: Literal["NCHW", "NHWC"]) -> list[str]:
        engine = EngineSettings(precision="float16", layout=layout)
        nodes = json.loads(logits_symbol(TABLE, RECIPE.model, engine, images).tojson())["nodes"]
        return [node["name"] for node in nodes if node["op"] == "BatchNorm" and node["attrs"]["axis"] == "1"]

    assert (batch_norm_rows(2, 56, "NHWC"), batch_norm_rows(2, 56, "NCHW")) == (2 * 56 * 56, 2)
    assert transposed(42, "NHWC") == transposed(70, "NHWC") == []
    assert transposed(71, "NHWC") == ["stem_bn"]
    # At 56 px, stage 1 has three blocks of three batch norms, and one in the projection; stage 2 begins at 56 px too.
    assert len(transposed(424, "NHWC")) == 12
    assert len(transposed(424, "NCHW")) == 53


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["googlenet", "densenet121", "resnet18", "alexnet"])
def test_every_layer_has_its_channels_where_the_layout_has_them(name: str, layout: Literal["NCHW", "NHWC"]) -> None:
    side = 96
    model = Model(name=name, num_classes=10, image_size=side)
    table = build_network(name, num_classes=10, image_size=side)
    inside = logits_symbol(table, model, EngineSettings(precision="float16", layout=layout), 2).get_internals()

    def shape(channels: int, size: int) -> tuple[int, ...]:
        return (2, channels, size, size) if layout == "NCHW" else (2, size, size, channels)

    _, shapes, _ = inside.infer_shape(data=shape(table.input_channels, side))
    found = dict(zip(inside.list_outputs(), shapes, strict=True))
    for layer in table.layers[:-1]:
        given = found.get(f"{layer.name}_output")
        if given is not None and len(given) > 2:
            assert given == shape(layer.out_channels, layer.out_size), layer.name


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
    for weight, master in zip(networks[0].weights, networks[0].masters, strict=True):
        rounded = master.asnumpy().astype(weight.dtype)
        np.testing.assert_allclose(weight.asnumpy(), rounded, rtol=1e-3)  # one bit: CPUs round up


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


def test_gradients_in_float16_are_summed_in_float32() -> None:
    network = _small(HALF, accumulate=True)
    halves = {
        each.name: each for each in network._held.values() if each.grad_req != "null" and each.dtype == np.float16
    }
    assert len(halves) == len(network._half_sums) > 0

    def backward() -> None:
        for each in halves.values():
            each.grad()[:] = 40_000  # of which float16 cannot hold two

    network._losses = SimpleNamespace(backward=backward)
    network.zero_gradients()
    for _ in range(3):
        network.backward()
    for parameter, gradient in zip(network.parameters, network.gradients, strict=True):
        expected = 120_000 if parameter.name in halves else 0
        assert (gradient.asnumpy() == expected).all(), parameter.name


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
