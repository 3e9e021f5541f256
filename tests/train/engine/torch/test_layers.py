"""Single layers of a table against arithmetic by hand."""

from typing import Any

import numpy as np
import pytest

from train.networks.arch import Layer, Network

torch = pytest.importorskip("torch")

PIXELS = np.array([[1, -2, 3, -4], [5, 6, -7, 8], [-9, 10, 11, 12], [13, -14, 15, 16]], np.float32)


def _computed(row: Layer, images: np.ndarray, **tensors: np.ndarray) -> np.ndarray:
    from train.engine.torch.layers import Layers, no_dropout

    layers = Layers(Network("one", row.in_size, row.in_channels, 2, (row,)), normalise=no_dropout)
    found: Any = layers(torch.tensor(images), {name: torch.tensor(each) for name, each in tensors.items()})
    values: np.ndarray = found.numpy()
    return values


@pytest.mark.parametrize(
    ("kind", "padding", "expected"),
    [
        # Padding counts as zeros in an average, and never in a maximum.
        ("max_pool", 1, [[1, 3, -4], [5, 11, 12], [13, 15, 16]]),
        ("avg_pool", 1, [[0.25, 0.25, -1], [-1, 5, 5], [3.25, 0.25, 4]]),
        ("global_pool", 0, [[4.0]]),
    ],
)
def test_pools_are_those_of_arithmetic(kind: Any, padding: int, expected: list[list[float]]) -> None:
    whole = kind == "global_pool"
    row = Layer("pool", kind, ("data",), 1, 1, 4, len(expected), 1 if whole else 2, 1 if whole else 2, padding)
    np.testing.assert_allclose(_computed(row, PIXELS.reshape(1, 1, 4, 4))[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_dense_layer_reads_its_input_channel_by_channel(has_bias: bool) -> None:
    random = np.random.default_rng(4)
    images, weight = random.standard_normal((5, 3, 2, 2), np.float32), random.standard_normal((2, 12), np.float32)
    tensors = {"dense_weight": weight, **({"dense_bias": np.array([1, -1], np.float32)} if has_bias else {})}
    row = Layer("dense", "dense", ("data",), 3, 2, 2, 1, has_bias=has_bias)
    found = _computed(row, torch.tensor(images).to(memory_format=torch.channels_last).numpy(), **tensors)
    expected = images.reshape(5, -1) @ weight.T + ([1, -1] if has_bias else [0, 0])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_addition_keeps_an_input_that_another_layer_reads() -> None:
    from train.engine.torch.layers import Layers, no_dropout

    rows = (
        Layer("left", "relu", ("data",), 3, 3, 4, 4), Layer("sum", "add", ("left", "data"), 3, 3, 4, 4),
        Layer("both", "concat", ("sum", "left"), 6, 6, 4, 4),
    )  # fmt: skip
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    given, left = images.clone(), images.relu()
    found = Layers(Network("three", 4, 3, 10, rows), normalise=no_dropout)(images, {})
    assert torch.equal(found, torch.cat([left + given, left], dim=1))
    assert torch.equal(images, given)
