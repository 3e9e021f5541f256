"""The architecture tables against published counts."""

from __future__ import annotations

import pytest

from train.arch import build_network


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "gigamacs"),
    [
        ("resnet18", 11_689_512, 62, 1.814),
        ("resnet34", 21_797_672, 110, 3.664),
        ("resnet50", 25_557_032, 161, 4.089),
        ("resnet101", 44_549_160, 314, 7.801),
        ("resnet152", 60_192_808, 467, 11.514),
    ],
)
def test_imagenet_networks_have_the_published_counts(name: str, parameters: int, tensors: int, gigamacs: float) -> None:
    network = build_network(name, num_classes=1000, image_size=224)
    assert network.num_parameters == parameters
    assert len(network.parameters) == tensors
    assert network.macs / 1e9 == pytest.approx(gigamacs, abs=1e-3)


@pytest.mark.parametrize(("name", "depth"), [("resnet20", 20), ("resnet32", 32), ("resnet56", 56)])
def test_small_networks_are_as_deep_as_their_name(name: str, depth: int) -> None:
    layers = build_network(name, num_classes=10, image_size=32).layers
    weighted = [layer for layer in layers if layer.kind in ("conv", "dense") and "projection" not in layer.name]
    assert len(weighted) == depth


def test_version_one_and_a_half_strides_in_the_3x3_convolution() -> None:
    layers = {layer.name: layer for layer in build_network("resnet50", num_classes=1000, image_size=224).layers}
    assert layers["stage2_block1_conv1"].stride == 1
    assert layers["stage2_block1_conv2"].stride == 2
    assert layers["stage2_block1_projection"].stride == 2
    assert layers["stage4_block3_relu"].out_size == 7


def test_a_fourth_input_channel_widens_only_the_stem() -> None:
    three = build_network("resnet50", num_classes=1000, image_size=224)
    four = build_network("resnet50", num_classes=1000, image_size=224, input_channels=4)
    assert four.num_parameters - three.num_parameters == 64 * 7 * 7
