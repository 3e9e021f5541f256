"""Inference, where batch norm is folded into the convolutions, and exported files, against onnxruntime and NumPy.

onnxruntime computes the network as its table says, with batch norm, from an ONNX file that no framework has written.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import each_engine, forward_backward, random_batch, randomize, small_network
from train.engine.build import build_optimizer
from train.engine.onnx_graph import export_onnx
from train.engine.parameters import load_parameters
from train.networks.arch import Network, Rows, network_of
from train.schedule import HyperParameters

pytestmark = pytest.mark.medium

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

OWN_FORMATS = {"mxnet": ["MXNet"], "torch": ["PyTorch state", "PyTorch program"]}
POOLED = "model.residual={shortcut: pooled, stride: pool, squeeze_excitation: [stage2_block1]}"
BLURRED = "model.residual={blur: convolutions}"
NETWORKS = [
    ("resnet8", (16,), []), ("resnet8", (16, 24), [POOLED]), ("resnet8", (15,), [BLURRED]),
    ("mnist_small_cnn", (28,), []), ("googlenet", (32,), []), ("densenet121", (32, 64), []),
    ("mobilenet_v2", (32,), []), ("resnet8", (16,), ["model.residual={activation: silu}"]),
]  # fmt: skip
"""Network, sides of images in training and of other ones that are evaluated, and overrides."""


def _opened(name: str, network_name: str, side: int, *overrides: str) -> tuple[Any, Any, Any]:
    """Give engine, a network with running statistics and batch norms like a trained one's, and its images."""
    given = f"model.name={network_name}", f"model.image_size={side}", "model.bn_epsilon=1e-3", *overrides
    engine, _, network = small_network(name, *given)
    randomize(network, network.network, network.read_weights())
    return engine, network, random_batch(engine, network, size=2)[0]


@each_engine
@pytest.mark.parametrize(("network_name", "sides", "overrides"), NETWORKS)
def test_folded_logits_equal_those_with_batch_norm(
    name: str, network_name: str, sides: tuple[int, ...], overrides: list[str], tmp_path: Path
) -> None:
    engine, network, _ = _opened(name, network_name, sides[0], *overrides)
    tensors = {**network.read_weights(), **network.read_statistics()}
    for side in sides:
        images = np.random.default_rng(5).standard_normal((2, network.image_shape[0], side, side), np.float32)
        given = engine.from_host(images)
        logits = engine.to_host(network.inference()(given))
        table = network_of(network.model.model_copy(update={"image_size": side}))
        ((title, predict),) = export_onnx(table, tensors, 1e-3, tmp_path / "network")
        expected = predict(images)
        assert title == "ONNX"
        assert expected.std() > 0
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * expected.std())
        np.testing.assert_array_equal(engine.to_host(given), images)
    graph = onnx.load(tmp_path / "network.onnx")
    assert [each.name for each in graph.graph.input] == ["data"], "weights are no inputs"
    assert ([each.version for each in graph.opset_import], graph.ir_version) == ([13], 8)


def test_mxnets_batch_norm_in_nhwc_that_is_not_folded_agrees_with_arithmetic() -> None:
    pytest.importorskip("mxnet")
    rows = Rows(3, 16)
    last = rows.add("pool", "global_pool", rows.add("first_relu", "relu", rows.add("first_bn", "bn", "data")))
    rows.dense("classifier", last, 10)
    table = Network("made", 16, 3, 10, tuple(rows.layers))
    engine, _, network = small_network("mxnet", "model.bn_epsilon=0.5", table=table, layout="NHWC")
    arrays = randomize(network, table, network.read_weights())
    images = random_batch(engine, network, size=2)[0]
    scale = arrays["first_bn_gamma"] / np.sqrt(arrays["first_bn_moving_var"] + 0.5)
    pooled = np.maximum(
        (engine.to_host(images) - arrays["first_bn_moving_mean"]) * scale + arrays["first_bn_beta"], 0
    ).mean(axis=(1, 2))
    expected = pooled @ arrays["classifier_weight"].T + arrays["classifier_bias"]
    np.testing.assert_allclose(engine.to_host(network.inference()(images)), expected, rtol=1e-4, atol=1e-5)


@each_engine
def test_weights_and_statistics_that_changed_are_folded_anew(name: str) -> None:
    engine, network, images = _opened(name, "resnet8", 16)
    first = engine.to_host(network.inference()(images))
    given = randomize(network, network.network, network.read_weights(), seed=5)
    second = engine.to_host(network.inference()(images))
    assert np.abs(second - first).max() > 0.1
    network.load_weights(given)
    np.testing.assert_array_equal(engine.to_host(network.inference()(images)), second)


@pytest.mark.medium
@each_engine
def test_weights_that_an_inference_reordered_in_memory_are_updated(name: str) -> None:
    sgd = "optimizer={name: sgd, momentum: 0, weight_decay: 0}"
    engine, recipe, network = small_network(name, "model.name=mnist_large_cnn", "model.image_size=28", sgd)
    count = len(network.parameters)
    optimizer = build_optimizer(engine, recipe.optimizer, network, rescale=1.0, arrivals=[0] * count)
    images, labels = random_batch(engine, network)
    for _ in range(2):
        before = network.read_weights()
        engine.wait(network.inference()(images))  # oneDNN reorders the weights
        forward_backward(network, images, labels)
        optimizer.update(HyperParameters(0.01, 0.0, 0.0))  # before anything reads the gradients, which reorders them
        after = network.read_weights()
        for each, gradient in zip(network.parameters, network.gradients, strict=True):
            expected = before[each.name] - 0.01 * engine.to_host(gradient)
            np.testing.assert_allclose(after[each.name], expected, rtol=1e-5, atol=1e-6, err_msg=each.name)


def _dense_table() -> Network:
    """Give a dense layer of Huang et al., whose first batch norm and ReLU no convolution takes up, and a transition."""
    rows = Rows(3, 16)
    inner = rows.add("norm_relu", "relu", rows.add("norm", "bn", "data"))
    inner = rows.add("conv", "conv", inner, out_channels=4, kernel=3)
    last = rows.add("pooled", "avg_pool", rows.add("joined", "concat", "data", inner), kernel=2, stride=2)
    rows.dense("classifier", rows.add("pool", "global_pool", last), 10)
    return Network("made", 16, 3, 10, tuple(rows.layers))


@each_engine
@pytest.mark.parametrize("is_dense", [False, True])
def test_every_exported_format_gives_the_logits_of_the_network(name: str, is_dense: bool, tmp_path: Path) -> None:
    engine, _, network = small_network(name, "model.bn_epsilon=1e-3", table=_dense_table() if is_dense else None)
    randomize(network, network.network, network.read_weights())
    images = random_batch(engine, network, size=2)[0]
    held = {**network.read_weights(), **network.read_statistics()}
    names = {name: name for name in held}
    logits = {title: predict(images) for title, predict in engine.export_formats(network, tmp_path / "network", names)}
    assert list(logits) == OWN_FORMATS[name]
    expected = engine.to_host(network.inference()(images))
    for title, values in logits.items():
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4 * expected.std(), err_msg=title)
    (own,) = (path for path in tmp_path.iterdir() if path.suffix in (".params", ".pt"))
    read = load_parameters(own, network.network, {})
    assert set(read) == set(held)
    assert all(np.array_equal(read[key], values) for key, values in held.items())


def test_without_its_packages_no_onnx_file_is_written_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert list(export_onnx(_dense_table(), {}, 1e-3, tmp_path / "network")) == []
    assert "no ONNX file is written: not installed: onnx, onnxruntime" in caplog.text
