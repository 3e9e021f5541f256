"""Folded inference and exported networks give the logits of batch norm with the running statistics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from configs.networks import IMAGE_SIZES
from tests.engines import ALONE
from train.engine.init import initial_weights
from train.engine.protocol import Engine, open_engine
from train.networks.arch import Network, build_network
from train.networks.table import Rows

torch = pytest.importorskip("torch")


def _network(name: str, side: int) -> tuple[Engine, Any, Any]:
    """Give engine, a network with random statistics and batch-norm parameters, and images."""
    recipe, cluster = load_both(
        "digits",
        "laptop",
        ["cluster.engine.name=torch", f"model.name={name}", f"model.image_size={side}", "model.bn_epsilon=1e-3"],
    )
    engine, draw = open_engine(cluster, ALONE), np.random.default_rng(3)
    table = build_network(name, num_classes=10, image_size=side)
    weights = initial_weights(table, recipe.model, 1)
    for key, array in weights.items():
        if key.endswith("_gamma"):
            weights[key] = draw.uniform(0.5, 1.5, array.shape).astype(np.float32)
        elif key.endswith(("_beta", "_bias")):
            weights[key] = draw.normal(0, 0.3, array.shape).astype(np.float32)
    for layer in table.layers:
        if layer.kind == "bn":
            weights[f"{layer.name}_moving_mean"] = draw.normal(0, 0.3, layer.out_channels).astype(np.float32)
            weights[f"{layer.name}_moving_var"] = draw.uniform(0.5, 2.0, layer.out_channels).astype(np.float32)
    network: Any = engine.build_network(table, recipe, accumulate=False)
    network.load_weights(weights)
    return engine, network, engine.from_host(draw.standard_normal((2, 3, side, side), np.float32))


def _with_batch_norm(network: Any, images: Any) -> np.ndarray:
    from train.engine.torch.export import _Inference

    with torch.no_grad():
        module = _Inference(network.network, network.tensors(), network.model.bn_epsilon)
        return np.asarray(module(images).numpy())


@pytest.mark.parametrize(("name", "side"), [("resnet8", 16), ("mnist_small_cnn", 28), ("googlenet", 32)])
def test_folded_logits_equal_those_with_batch_norm(name: str, side: int) -> None:
    engine, network, images = _network(name, side)
    expected = _with_batch_norm(network, images)
    kept = images.clone()
    logits = engine.to_host(network.inference()(images))
    assert expected.std() > 0
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * expected.std())
    assert torch.equal(images, kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121", "alexnet"])
def test_folded_logits_of_large_networks_equal_those_with_batch_norm(name: str) -> None:
    _, network, images = _network(name, min(max(IMAGE_SIZES[name][0], 64), IMAGE_SIZES[name][1]))
    expected = _with_batch_norm(network, images)
    np.testing.assert_allclose(network.inference()(images), expected, rtol=1e-3, atol=1e-4 * expected.std())


def test_later_changes_have_no_effect_on_an_inference_function() -> None:
    _, network, images = _network("resnet8", 16)
    predict = network.inference()
    first = predict(images)
    for tensor in (*network.masters, *network.statistics):
        tensor.add_(0.1)
    assert torch.equal(predict(images), first)
    assert not torch.allclose(network.inference()(images), first)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("resnet8", 16), ("densenet121", 32), ("mnist_small_cnn", 28)])
def test_every_exported_format_gives_the_logits_of_the_network(name: str, side: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    engine, network, images = _network(name, side)
    logits = {title: predict(images) for title, predict in engine.export_formats(network, tmp_path / "network")}
    assert list(logits) == ["trained", "PyTorch state", "PyTorch program", "ONNX"]
    for title, values in logits.items():
        expected = logits["trained"]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4 * expected.std(), err_msg=title)
    assert {path.name for path in tmp_path.iterdir()} == {"network.pt", "network.pt2", "network.onnx"}
    read = engine.read_parameters(tmp_path / "network.pt")
    assert all(np.array_equal(read[key], value) for key, value in network.read_weights().items())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_norm_before", [False, True])
def test_a_convolution_with_a_bias_is_folded_too_and_a_batch_norm_without_one_is_scale_and_shift(
    has_bias: bool, has_norm_before: bool
) -> None:
    from train.engine.torch.folding import FoldedInference

    rows = Rows(3, 8)
    last = rows.add("before", "bn", "data") if has_norm_before else "data"
    last = rows.add("stem", "conv", last, out_channels=4, kernel=1, has_bias=has_bias)
    rows.dense("classifier", rows.add("pool", "global_pool", rows.add("stem_bn", "bn", last)), 2)
    table, draw = Network("made", 8, 3, 2, tuple(rows.layers)), np.random.default_rng(5)
    arrays = {each.name: draw.standard_normal(each.shape) for each in table.parameters}
    channels = {"before": 3, "stem_bn": 4} if has_norm_before else {"stem_bn": 4}
    for name, count in channels.items():
        arrays[f"{name}_moving_mean"], arrays[f"{name}_moving_var"] = draw.standard_normal(count), draw.random(count)
    images = draw.standard_normal((2, 3, 8, 8))

    def normalised(name: str, values: np.ndarray) -> np.ndarray:
        mean, variance, gamma, beta = (
            arrays[f"{name}_{kind}"].reshape(-1, 1, 1) for kind in ("moving_mean", "moving_var", "gamma", "beta")
        )
        return np.asarray((values - mean) / np.sqrt(variance + 0.5) * gamma + beta)

    values = normalised("before", images) if has_norm_before else images
    values = np.einsum("oc,nchw->nohw", arrays["stem_weight"][:, :, 0, 0], values)
    if has_bias:
        values += arrays["stem_bias"].reshape(-1, 1, 1)
    pooled = normalised("stem_bn", values).mean(axis=(2, 3))
    expected = pooled @ arrays["classifier_weight"].T + arrays["classifier_bias"]
    tensors = {name: torch.tensor(array, dtype=torch.float32) for name, array in arrays.items()}
    folded = FoldedInference(table, tensors, epsilon=0.5, dtype=torch.float32)
    found = folded(torch.tensor(images, dtype=torch.float32))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
