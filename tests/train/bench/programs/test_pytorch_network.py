"""The peer's layers, row by row of a table, by hand."""

from typing import Any

import pytest

from train.networks.arch import Kind, Network, Rows

torch = pytest.importorskip("torch")


def _network(kind: Kind, *, side: int = 4, channels: int = 1, inputs: int = 1, **geometry: Any) -> Any:
    from train.bench.programs.pytorch_network import TableNetwork

    rows = Rows(channels, side)
    rows.add("one", kind, *["data"] * inputs, **geometry)
    return TableNetwork(Network("one layer", side, channels, 3, tuple(rows.layers))).eval()


IMAGE = torch.arange(16.0).view(1, 1, 4, 4)


@pytest.mark.parametrize(
    ("kind", "geometry", "expected"),
    [
        # The rows of the image are 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
        ("max_pool", {"kernel": 2, "stride": 2, "padding": 0}, [5, 7, 13, 15]),
        ("max_pool", {"kernel": 3, "stride": 2, "padding": 1}, [5, 7, 13, 15]),
        ("avg_pool", {"kernel": 2, "stride": 2, "padding": 0}, [2.5, 4.5, 10.5, 12.5]),
        ("global_pool", {}, [7.5]),
        ("dropout", {"rate": 0.5}, [*range(16)]),
    ],
)
def test_a_layer_without_weights_is_the_tables(kind: Kind, geometry: dict[str, Any], expected: list[float]) -> None:
    assert _network(kind, **geometry)(IMAGE).flatten().tolist() == expected


def test_a_convolution_has_the_tables_stride_margin_channels_and_bias() -> None:
    network = _network("conv", out_channels=2, kernel=3, stride=2, padding=1, has_bias=True)
    weight, bias = network.parameters()
    assert weight.shape == (2, 1, 3, 3)
    with torch.no_grad():
        weight.zero_()
        weight[0, 0, 1, 1], weight[1, 0, 0, 0] = 1.0, 2.0
        bias.copy_(torch.tensor([0.5, -1.0]))
    # The middle of each window and half on top; twice its upper left corner, for three of them in the margin.
    assert network(IMAGE).flatten().tolist() == [0.5, 2.5, 8.5, 10.5, -1.0, -1.0, -1.0, 9.0]
    assert [*dict(_network("conv", out_channels=2, kernel=3).named_parameters())] == ["parts.one.weight"]


def test_a_dense_layer_reads_every_pixel_of_every_channel_and_channels_are_joined_in_order() -> None:
    dense = _network("dense", side=2, channels=3, out_channels=5, has_bias=True)
    assert [tuple(each.shape) for each in dense.parameters()] == [(5, 12), (5,)]
    joined = _network("concat", inputs=2)(IMAGE)
    assert joined.shape == (1, 2, 4, 4)
    assert torch.equal(joined[0, 1], IMAGE[0, 0])
    assert torch.equal(_network("add", inputs=2)(IMAGE), 2 * IMAGE)


def test_dropout_drops_its_share_in_training_alone() -> None:
    network = _network("dropout", side=64, rate=0.25)
    ones = torch.ones(1, 1, 64, 64)
    torch.manual_seed(1)
    dropped = network.train()(ones)
    # 4096 pixels, of which 1024 are dropped, give or take 28.
    assert abs(int((dropped == 0).sum()) - 1024) < 4 * 28
    assert torch.unique(dropped).tolist() == pytest.approx([0, 4 / 3])


def test_a_relu_overwrites_what_nothing_else_reads() -> None:
    from train.bench.programs.pytorch_network import TableNetwork

    rows = Rows(1, 4)
    rows.add("norm", "bn", "data")
    rows.add("first", "relu", "norm")
    rows.add("second", "relu", "first")
    rows.add("sum", "add", "first", "second")
    parts = TableNetwork(Network("small", 4, 1, 3, tuple(rows.layers))).parts
    assert (parts["first"].inplace, parts["second"].inplace) == (True, False)
