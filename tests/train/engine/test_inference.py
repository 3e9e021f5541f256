"""Inference, where batch norm is folded into the convolutions, and exported files, against onnxruntime and NumPy.

onnxruntime computes the network as its table says, with batch norm, from an ONNX file that no framework has written.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import BOTH, each_engine, forward_backward, random_batch, randomize, small_network
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
    ("resnet8", 16, []), ("resnet8", 16, [POOLED]), ("resnet8", 15, [BLURRED]),
    ("mnist_small_cnn", 28, []), ("googlenet", 32, []), ("densenet121", 32, []),
    ("mobilenet_v2", 32, []), ("resnet8", 16, ["model.residual={activation: silu}"]),
]  # fmt: skip


def _opened(name: str, network_name: str, side: int, *overrides: str) -> tuple[Any, Any, Any]:
    """Give engine, a network with running statistics and batch norms like a trained one's, and its images."""
    given = f"model.name={network_name}", f"model.image_size={side}", "model.bn_epsilon=1e-3", *overrides
    engine, _, network = small_network(name, *given)
    randomize(network, network.network, network.read_weights())
    return engine, network, random_batch(engine, network, size=2)[0]


def _by_onnxruntime(network: Any, images: np.ndarray, prefix: Path, epsilon: float = 1e-3) -> np.ndarray:
    tensors = {**network.read_weights(), **network.read_statistics()}
    ((title, predict),) = export_onnx(network.network, tensors, epsilon, prefix)
    assert title == "ONNX"
    return predict(images)


@each_engine
@pytest.mark.parametrize(("network_name", "side", "overrides"), NETWORKS)
def test_folded_logits_equal_those_with_batch_norm(
    name: str, network_name: str, side: int, overrides: list[str], tmp_path: Path
) -> None:
    engine, network, images = _opened(name, network_name, side, *overrides)
    kept = engine.to_host(images)
    logits = engine.to_host(network.inference()(images))
    expected = _by_onnxruntime(network, kept, tmp_path / "network")
    assert expected.std() > 0
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * expected.std())
    np.testing.assert_array_equal(engine.to_host(images), kept)
    graph = onnx.load(tmp_path / "network.onnx")
    assert [each.name for each in graph.graph.input] == ["data"], "weights are no inputs"
    assert ([each.version for each in graph.opset_import], graph.ir_version) == ([13], 8)


@each_engine
@pytest.mark.parametrize(
    ("network_name", "side", "overrides"),
    [
        ("densenet121", 64, []), ("resnet8", 48, [POOLED]),
    ],
)  # fmt: skip
def test_images_of_another_size_than_those_of_training_are_evaluated(
    name: str, network_name: str, side: int, overrides: list[str], tmp_path: Path
) -> None:
    engine, network, images = _opened(name, network_name, 32, *overrides)
    network.inference()(images)
    images = np.random.default_rng(5).standard_normal((2, 3, side, side), np.float32)
    logits = engine.to_host(network.inference()(engine.from_host(images)))
    table = network_of(network.model.model_copy(update={"image_size": side}))
    tensors = {**network.read_weights(), **network.read_statistics()}
    ((_, predict),) = export_onnx(table, tensors, 1e-3, tmp_path / "network")
    expected = predict(images)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4 * expected.std())


def _table(*, has_bias: bool, has_norm_before: bool) -> Network:
    rows = Rows(3, 16)
    last = rows.add("before", "bn", "data") if has_norm_before else "data"
    last = rows.add("stem", "conv", last, out_channels=4, kernel=1, has_bias=has_bias)
    last = rows.add("stem_relu", "relu", rows.add("stem_bn", "bn", last))
    last = rows.add("mean", "avg_pool", last, kernel=3, stride=2)
    rows.dense("classifier", rows.add("pool", "global_pool", last), 10)
    return Network("made", 16, 3, 10, tuple(rows.layers))


@pytest.mark.parametrize(("name", "layout"), [*(pytest.param(*each.values, "NCHW", marks=each.marks) for each in BOTH),
                                              pytest.param("torch", "NHWC", marks=BOTH[1].marks)])  # fmt: skip
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_norm_before", [False, True])
def test_a_convolution_with_a_bias_is_folded_too_and_a_batch_norm_without_one_is_scale_and_shift(
    name: str, layout: str, has_bias: bool, has_norm_before: bool
) -> None:
    table = _table(has_bias=has_bias, has_norm_before=has_norm_before)
    engine, _, network = small_network(name, "model.bn_epsilon=0.5", table=table, layout=layout)
    arrays = {key: each.astype(np.float64) for key, each in randomize(network, table, network.read_weights()).items()}
    images = random_batch(engine, network, size=2)[0]
    values = engine.to_host(images).astype(np.float64)
    values = values.transpose(0, 3, 1, 2) if layout == "NHWC" else values

    def normalised(layer: str, values: np.ndarray) -> np.ndarray:
        mean, variance, gamma, beta = (
            arrays[f"{layer}_{kind}"].reshape(-1, 1, 1) for kind in ("moving_mean", "moving_var", "gamma", "beta")
        )
        return np.asarray((values - mean) / np.sqrt(variance + 0.5) * gamma + beta)

    values = normalised("before", values) if has_norm_before else values
    values = np.einsum("oc,nchw->nohw", arrays["stem_weight"][:, :, 0, 0], values)
    if has_bias:
        values += arrays["stem_bias"].reshape(-1, 1, 1)
    padded = np.pad(np.maximum(normalised("stem_bn", values), 0), ((0, 0), (0, 0), (1, 1), (1, 1)))
    # What lies outside the image counts as zeros.
    windows = [padded[:, :, row : row + 16 : 2, column : column + 16 : 2] for row in range(3) for column in range(3)]
    pooled = np.mean(windows, axis=(0, 3, 4))
    expected = pooled @ arrays["classifier_weight"].T + arrays["classifier_bias"]
    np.testing.assert_allclose(engine.to_host(network.inference()(images)), expected, rtol=1e-4, atol=1e-5)


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


@each_engine
def test_training_after_an_evaluation_takes_the_same_steps(name: str) -> None:
    def gradients(*, evaluates: bool) -> bytes:
        engine, network, images = _opened(name, "resnet8", 16)
        if evaluates:
            engine.wait(network.inference()(images))
        forward_backward(network, images, engine.from_host(np.array([0, 1], np.float32)))
        return b"".join(engine.to_host(each).tobytes() for each in network.gradients)

    assert gradients(evaluates=True) == gradients(evaluates=False)


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
    read = load_parameters(own, network.network, {}, engine.read_parameters)
    assert set(read) == set(held)
    assert all(np.array_equal(read[key], values) for key, values in held.items())


def test_without_its_packages_no_onnx_file_is_written_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert list(export_onnx(_table(has_bias=False, has_norm_before=False), {}, 1e-3, tmp_path / "network")) == []
    assert "no ONNX file is written: not installed: onnx, onnxruntime" in caplog.text
