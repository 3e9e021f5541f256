"""Kinds of layers that no plain ResNet has, forward and backward, against PyTorch's own operators in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import BOTH, forward_backward, random_batch, randomize, small_network
from train.engine.onnx_graph import export_onnx
from train.networks.arch import Network, Rows

torch = pytest.importorskip("torch")
functional: Any = torch.nn.functional

PLACES = [
    *(pytest.param(*each.values, {}, marks=each.marks) for each in BOTH),
    *(pytest.param("torch", {"layout": "NHWC", "batch_norm": kind}) for kind in ("framework", "fused")),
]
"""Engine, and settings of it."""


def _table() -> Network:
    rows = Rows(3, 12)
    # A batch norm without a convolution, and one behind a convolution with a bias.
    last = rows.add("stem", "conv", rows.add("first_bn", "bn", "data"), out_channels=8, kernel=3, has_bias=True)
    last = rows.add("mean", "avg_pool", rows.add("stem_bn", "bn", last), kernel=3, stride=1)
    last = rows.add("grouped", "conv", last, out_channels=12, kernel=3, stride=2, groups=4, has_bias=True)
    last = rows.add("largest", "max_pool", last, kernel=3)
    last = rows.add("smooth", "silu", rows.conv_bn("depthwise", last, 12, kernel=5, groups=12))
    last = rows.add("multiplied", "conv", last, out_channels=24, kernel=3, groups=12, has_bias=True)
    last = rows.add("bounded", "relu6", last)
    rows.dense("classifier", rows.add("pool", "global_pool", last), 10)
    return Network("layers", 12, 3, 10, tuple(rows.layers))


def _oracle(of: Any, values: Any, *, is_training: bool) -> Any:
    """Give the logits of `_table`, whose tensors are ``of[name]``."""

    def normalised(values: Any, name: str) -> Any:
        mean, variance = (None if is_training else of[f"{name}_moving_{each}"] for each in ("mean", "var"))
        scale, shift = of[f"{name}_gamma"], of[f"{name}_beta"]
        return functional.batch_norm(values, mean, variance, scale, shift, training=is_training, eps=1e-5)

    values = functional.conv2d(normalised(values, "first_bn"), of["stem_weight"], of["stem_bias"], padding=1)
    values = functional.avg_pool2d(normalised(values, "stem_bn"), 3, 1, padding=1)
    values = functional.conv2d(values, of["grouped_weight"], of["grouped_bias"], stride=2, padding=1, groups=4)
    values = functional.max_pool2d(values, 3, 1, padding=1)
    values = functional.conv2d(values, of["depthwise_weight"], padding=2, groups=12)
    values = normalised(values, "depthwise_bn")
    values = values / (1 + torch.exp(-values))
    values = functional.conv2d(values, of["multiplied_weight"], of["multiplied_bias"], padding=1, groups=12)
    assert values.min() < -0.5
    assert values.max() > 6.5
    return functional.linear(functional.relu6(values).mean((2, 3)), of["classifier_weight"], of["classifier_bias"])


def _made(name: str, settings: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Give engine, network, batch, its images as the oracle takes them, and the oracle's tensors."""
    table = _table()
    engine, _, network = small_network(name, "model.image_size=12", table=table, **settings)
    tensors = randomize(network, table, network.read_weights())
    # So that ReLU6 has inputs on both sides of 6.
    tensors["multiplied_weight"] *= 3
    # At 0 itself, ReLU6 passes no gradient on, as a ReLU.
    tensors["multiplied_weight"][0] = tensors["multiplied_bias"][0] = 0
    network.load_weights(tensors)
    batch = random_batch(engine, network)
    pixels = engine.to_host(batch[0])
    pixels = pixels.transpose(0, 3, 1, 2) if settings.get("layout") == "NHWC" else pixels
    exact = {key: torch.from_numpy(np.array(values)).double().requires_grad_() for key, values in tensors.items()}
    return engine, network, batch, torch.from_numpy(pixels.copy()).double(), exact


@pytest.mark.medium
@pytest.mark.parametrize(("name", "settings"), PLACES)
def test_loss_and_gradients_are_those_of_pytorchs_operators(name: str, settings: dict[str, str]) -> None:
    engine, network, (images, labels), pixels, exact = _made(name, settings)
    target = torch.from_numpy(engine.to_host(labels)).long()
    logits = _oracle(exact, pixels, is_training=True)
    loss = functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
    loss.backward()
    assert engine.to_number(forward_backward(network, images, labels)) == pytest.approx(loss.item(), rel=1e-5)
    for parameter, found in zip(network.parameters, network.gradients, strict=True):
        expected = exact[parameter.name].grad.numpy()
        largest = np.abs(expected).max()
        assert largest > 1e-3 or parameter.name == "stem_bias", "whose gradient the batch norm behind it makes 0"
        gradient = network.to_oihw(engine.to_host(found))
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4 * max(largest, 0.1))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "settings"), PLACES)
def test_an_evaluation_and_the_onnx_file_give_the_logits_of_pytorchs_operators(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    engine, network, (images, _), pixels, exact = _made(name, settings)
    with torch.no_grad():
        expected = _oracle(exact, pixels, is_training=False).numpy()
    np.testing.assert_allclose(engine.to_host(network.inference()(images)), expected, rtol=1e-4, atol=1e-5)
    tensors = {**network.read_weights(), **network.read_statistics()}
    ((_, predict),) = export_onnx(network.network, tensors, 1e-5, tmp_path / "network")
    np.testing.assert_allclose(predict(pixels.float().numpy()), expected, rtol=1e-4, atol=1e-5)
