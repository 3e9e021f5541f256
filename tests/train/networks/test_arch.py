"""The architecture tables against published counts."""

from collections import Counter

import pytest

from configs.networks import NETWORKS
from train.networks.arch import Network, Rows, build_network


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "tensors", "gigamacs"),
    [
        ("resnet18", 1000, 11_689_512, 62, 1.814),
        ("resnet34", 1000, 21_797_672, 110, 3.664),
        ("resnet50", 1000, 25_557_032, 161, 4.089),
        ("resnet101", 1000, 44_549_160, 314, 7.801),
        ("resnet152", 1000, 60_192_808, 467, 11.514),
        ("resnext50_32x4d", 1000, 25_028_904, 161, 4.230),
        ("mobilenet_v2", 1000, 3_504_872, 158, 0.301),
        ("alexnet", 1000, 61_100_840, 16, 0.714),
        ("googlenet", 1000, 6_998_552, 116, 1.583),
        ("googlenet", 1001, 6_999_577, 116, 1.583),
        ("densenet121", 1000, 7_978_856, 364, 2.834),
        ("densenet121", 14, 6_968_206, 364, 2.833),
    ],
)
def test_a_network_has_the_published_counts(
    name: str, classes: int, parameters: int, tensors: int, gigamacs: float
) -> None:
    network = build_network(name, num_classes=classes, image_size=224)
    assert (network.num_parameters, len(network.parameters)) == (parameters, tensors)
    assert network.macs / 1e9 == pytest.approx(gigamacs, abs=1e-3)


@pytest.mark.parametrize(("name", "parameters"), [("mnist_small_cnn", 402_442), ("mnist_large_cnn", 4_104_202)])
def test_the_mnist_networks_have_the_benchmarks_counts_on_one_channel(name: str, parameters: int) -> None:
    assert build_network(name, num_classes=10, image_size=28, input_channels=1).num_parameters == parameters


def test_the_large_mnist_networks_tensors_keep_the_names_from_which_their_weights_are_drawn() -> None:
    names = [each.name for each in build_network("mnist_large_cnn", num_classes=10, image_size=28).parameters]
    layers = ("conv1", "conv2", "conv3", "dense1", "dense2", "classifier")
    assert names == [f"{layer}_{kind}" for layer in layers for kind in ("weight", "bias")]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_can_be_built_at_its_smallest_image(name: str) -> None:
    network = build_network(name, num_classes=10, image_size=NETWORKS[name].smallest)
    assert network.layers[-1].parameters[0].shape[0] == 10
    names = [layer.name for layer in network.layers]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("name", "depth"), [("resnet20", 20), ("resnet32", 32), ("resnet56", 56)])
def test_small_networks_are_as_deep_as_their_name(name: str, depth: int) -> None:
    layers = build_network(name, num_classes=10, image_size=32).layers
    weighted = [layer for layer in layers if layer.kind.name in ("conv", "dense") and "projection" not in layer.name]
    assert len(weighted) == depth


def test_a_convolution_folds_only_into_the_one_batch_norm_that_reads_it() -> None:
    rows = Rows(3, 8)
    rows.add("alone", "conv", "data", out_channels=4, kernel=3)
    rows.add("alone_bn", "bn", "alone")
    rows.add("shared", "conv", "alone_bn", out_channels=4, kernel=3)
    rows.add("shared_bn", "bn", "shared")
    rows.add("sum", "add", "shared", "shared_bn")
    rows.add("plain", "conv", "sum", out_channels=4)
    network = Network("example", 8, 3, 4, tuple(rows.layers))
    assert network.foldable_convolutions() == {"alone"}


@pytest.mark.parametrize(
    ("name", "pools", "dropped"),
    [
        ("resnet8", {"global_pool": 1}, []),
        ("resnet18", {"max_pool": 1, "global_pool": 1}, []),
        ("alexnet", {"max_pool": 3}, [0.5, 0.5]),
        ("googlenet", {"max_pool": 4 + 9, "global_pool": 1}, [0.4]),
        ("mobilenet_v2", {"global_pool": 1}, [0.2]),
        ("densenet121", {"max_pool": 1, "avg_pool": 3, "global_pool": 1}, []),
        ("mnist_large_cnn", {"max_pool": 3}, []),
    ],
)
def test_layers_without_weights_are_those_of_the_papers(name: str, pools: dict[str, int], dropped: list[float]) -> None:
    layers = build_network(name, num_classes=10, image_size=NETWORKS[name].smallest).layers
    assert Counter(layer.kind.name for layer in layers if layer.kind.name.endswith("_pool")) == pools
    assert [layer.rate for layer in layers if layer.kind.name == "dropout"] == dropped


@pytest.mark.parametrize(("name", "blocks"), [("resnet8", 3), ("resnet18", 8), ("resnet50", 16), ("mobilenet_v2", 10)])
def test_a_block_ends_with_the_batch_norm_before_its_addition(name: str, blocks: int) -> None:
    layers = build_network(name, num_classes=10, image_size=32).layers
    ends = [layer.name for layer in layers if layer.ends_block]
    assert ends == [layer.inputs[0] for layer in layers if layer.kind.name == "add"]
    assert len(ends) == blocks
