"""The GPU path as far as a CPU can judge it: types and layouts by inference, masters, the update; the rest on a GPU."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from configs.load import ROOT, load_cluster, load_recipe
from configs.optimizers import Lars
from configs.schema import EngineSettings, Model
from tests.engines import ALONE, forward_backward, small_network
from train.engine.init import initial_weights
from train.engine.mxnet.engine import MxnetEngine
from train.engine.mxnet.folding import folded_symbol
from train.engine.mxnet.optimizers import MomentumOptimizer
from train.engine.mxnet.symbols import Settings, logits_symbol
from train.networks.arch import Network, Rows, build_network, network_of
from train.schedule import HyperParameters

RECIPE, CLUSTER = load_recipe("abci-b86016"), load_cluster("abci-v100")


def _small(settings: EngineSettings, *, accumulate: bool = False, device: str = "cpu") -> Any:
    recipe = load_recipe("digits", ["model.name=resnet8", "model.image_size=16", "model.input_channels=4"])
    cluster = load_cluster("laptop").model_copy(update={"device": device, "engine": settings})
    network: Any = MxnetEngine(cluster, ALONE).build_network(network_of(recipe.model), recipe, accumulate=accumulate)
    network.load_weights(initial_weights(network.network, network.model, seed=1))
    return network


@pytest.mark.parametrize(
    ("network", "is_training"), [("resnet50", True), ("resnet50", False), ("googlenet", True), ("densenet121", True)]
)
def test_every_operator_has_the_type_and_layout_that_the_gpus_of_the_record_want(
    network: str, is_training: bool
) -> None:
    table = build_network(network, num_classes=1000, image_size=224, input_channels=4)
    model = RECIPE.model.model_copy(update={"name": network})
    settings = Settings(model, CLUSTER.engine)
    symbol = logits_symbol(table, settings) if is_training else folded_symbol(table, settings)
    _, (output,), statistics = symbol.infer_type(data="float32")
    assert output is np.float32
    assert set(statistics) <= ({np.float32} if is_training else set()), "an evaluation has no batch norm"
    inside = symbol.get_internals()
    types = dict(zip(inside.list_outputs(), inside.infer_type(data="float32")[1], strict=True))
    shapes = dict(zip(inside.list_outputs(), inside.infer_shape(data=(42, 224, 224, 4))[1], strict=True))
    for layer in table.layers[:-1]:
        if f"{layer.name}_output" in shapes:
            assert types[f"{layer.name}_output"] is np.float16, layer.name
            assert shapes[f"{layer.name}_output"] == (42, layer.out_size, layer.out_size, layer.out_channels)
    for parameter in table.parameters if is_training else ():
        in_half = parameter.kind in ("weight", "bias")
        assert types[parameter.name] is (np.float16 if in_half else np.float32), parameter.name
        out, *window = parameter.shape
        if len(window) == 3:
            assert shapes[parameter.name] == (out, *window[1:], window[0])


INFERENCE_ROWS = 65_535
"""Most images of a batch norm in inference. *Source*: libcudnn_ops_infer.so of cuDNN 8.9.6 returns
CUDNN_STATUS_NOT_SUPPORTED for more; PyTorch has the same guard."""
TRAINING_ROWS = 880_801
"""Most images of a batch norm in training. *Source*: the guard in PyTorch's ``aten/native/Normalization.cpp``."""
TENSOR_ELEMENTS = 2**31 - 1
"""Most elements of a tensor. *Source*: MXNet 1.9.1's wheels are built without INT64_TENSOR_SIZE, and refuse more."""

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
@pytest.mark.parametrize("cluster", ["abci-v100", "a100-node"])
def test_no_operator_of_a_shipped_recipe_meets_a_limit_of_the_gpu_libraries(cluster: str) -> None:
    engine = load_cluster(cluster).engine
    # Many recipes are alike in what operators see: each such network is built once.
    cases = {(repr(load_recipe(name).model), _largest_batch(name)): name for name in GPU_RECIPES}
    for (_, images), recipe in cases.items():
        _check_limits(load_recipe(recipe).evaluated.model, engine, images)


def _check_limits(model: Model, engine: EngineSettings, images: int) -> None:
    table, side = network_of(model), model.image_size
    axes = {"N": images, "C": model.input_channels, "H": side, "W": side}
    shape = tuple(axes[axis] for axis in engine.layout)
    settings = Settings(model, engine, images)
    phases = {TRAINING_ROWS: logits_symbol(table, settings), INFERENCE_ROWS: folded_symbol(table, settings)}
    for most_rows, symbol in phases.items():
        num_norms = 0
        for operator, name, attributes, sides in _tensors(symbol, shape):
            assert math.prod(sides) <= TENSOR_ELEMENTS, name
            if operator == "BatchNorm":
                channel_is_last = attributes["axis"] == str(len(sides) - 1)
                assert sides[0] * (math.prod(sides[1:-1]) if channel_is_last else 1) <= most_rows, name
                num_norms += 1
        layers = 55 if model.residual.stem == "deep" else 53
        assert num_norms == (layers if most_rows == TRAINING_ROWS else 0)


@pytest.mark.medium
def test_a_large_batch_norm_of_nhwc_is_the_same_in_nchw() -> None:
    rows = Rows(2, 939)  # 939^2 = 881,721 pixels are more than cuDNN takes as images
    last = rows.add("pool", "global_pool", rows.add("relu", "relu", rows.add("norm", "bn", "data")))
    rows.dense("classifier", last, 10)
    table, found = Network("one", 939, 2, 10, tuple(rows.layers)), []
    images = np.random.default_rng(0).standard_normal((1, 2, 939, 939), np.float32)
    images[:, 1] += 2
    for layout, batch in (("NCHW", images), ("NHWC", images.transpose(0, 2, 3, 1))):
        engine, _, network = small_network("mxnet", "model.classifier_std=0.9", table=table, layout=layout)
        loss = engine.to_number(forward_backward(network, engine.from_host(batch), engine.zeros((1,))))
        found.append([loss, *map(engine.to_host, network.gradients), *network.read_statistics().values()])
    for plain, transposed in zip(*found, strict=True):
        np.testing.assert_allclose(plain, transposed, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu("mxnet")
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
        (_small(engine, accumulate=accumulate, device="gpu"), mx.gpu()),
    ):
        is_nhwc = context == mx.gpu() and layout == "NHWC"
        batch = mx.nd.array(images.transpose(0, 2, 3, 1) if is_nhwc else images, ctx=context)
        network.zero_gradients()
        forward_backward(network, batch, mx.nd.array(labels, ctx=context))
        config = Lars(name="lars", weight_decay=1e-4, trust_coefficient=0.01)
        optimizer = MomentumOptimizer(network.engine, config, network, rescale=1 / 8)
        before = network.read_weights()
        optimizer.update(HyperParameters(0.1, 0.9, 1e-4))
        found.append({name: array - before[name] for name, array in network.read_weights().items()})
    for name, moved in found[0].items():
        assert np.linalg.norm(found[1][name] - moved) < 0.05 * np.linalg.norm(moved) + 1e-6, name
