"""Every network as a table of layers: shapes, multiply-adds, parameters. Pure: imports no framework.

`train.model` turns a table into a network, and the planner and the simulator read the same rows, so the three cannot
disagree. *Sources*: He et al., arXiv:1512.03385 (tables 1 and 6); version 1.5 strides in the 3x3 convolution of a
bottleneck and in its projection, not in the first 1x1 (the MLPerf reference).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Layer", "Network", "Parameter", "build_network"]

Kind = Literal["conv", "bn", "relu", "add", "max_pool", "global_pool", "dense"]


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor: ``kind`` is weight, gamma, beta or bias; ``shape`` in the NCHW convention (OIHW)."""

    name: str
    kind: Literal["weight", "gamma", "beta", "bias"]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Count its numbers."""
        product = 1
        for side in self.shape:
            product *= side
        return product


@dataclass(frozen=True)
class Layer:
    """One row: what it reads, and its geometry for one image (sides in pixels, square)."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    in_channels: int
    out_channels: int
    in_size: int
    out_size: int
    kernel: int = 1
    stride: int = 1
    ends_block: bool = False

    @property
    def padding(self) -> int:
        """Pixels added on each side, so that a stride of 1 keeps the size."""
        return (self.kernel - 1) // 2

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass for one image; batch norm and pooling count as nothing."""
        if self.kind == "conv":
            return self.out_size**2 * self.out_channels * self.in_channels * self.kernel**2
        return self.in_channels * self.out_channels if self.kind == "dense" else 0

    @property
    def output_elements(self) -> int:
        """Numbers in its output for one image."""
        return self.out_channels * self.out_size**2

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Trainable tensors, in the order in which the network holds them."""
        if self.kind == "conv":
            shape = (self.out_channels, self.in_channels, self.kernel, self.kernel)
            return (Parameter(f"{self.name}_weight", "weight", shape),)
        if self.kind == "bn":
            width = (self.out_channels,)
            return (Parameter(f"{self.name}_gamma", "gamma", width), Parameter(f"{self.name}_beta", "beta", width))
        if self.kind == "dense":
            weight = Parameter(f"{self.name}_weight", "weight", (self.out_channels, self.in_channels))
            return (weight, Parameter(f"{self.name}_bias", "bias", (self.out_channels,)))
        return ()


@dataclass(frozen=True)
class Network:
    """A network's rows in forward order; the last is the classifier."""

    name: str
    image_size: int
    input_channels: int
    num_classes: int
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All trainable tensors, first layer first."""
        return tuple(parameter for layer in self.layers for parameter in layer.parameters)

    @property
    def num_parameters(self) -> int:
        """Count all trainable numbers."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def macs(self) -> int:
        """Multiply-adds of one image's forward pass."""
        return sum(layer.macs for layer in self.layers)


_BOTTLENECK = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
_BASIC = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
_SMALL = {"resnet8": 1, "resnet20": 3, "resnet32": 5, "resnet56": 9}


def build_network(name: str, *, num_classes: int, image_size: int, input_channels: int = 3) -> Network:
    """Make a network's table.

    Args:
        name: ``resnet18`` to ``resnet152`` for photographs, ``resnet8`` to ``resnet56`` for small images.
        num_classes: Width of the classifier.
        image_size: Side of the square input, px.
        input_channels: 3, or 4 where a zero channel pads the input for tensor cores.
    """
    rows = _Rows(input_channels, image_size)
    if name in _SMALL:
        last = rows.conv_bn("stem", "data", 16, kernel=3, relu=True)
        for stage, width in enumerate((16, 32, 64), start=1):
            for block in range(1, _SMALL[name] + 1):
                last = _basic(rows, f"stage{stage}_block{block}", last, width, 2 if stage > 1 and block == 1 else 1)
    else:
        stages = _BOTTLENECK.get(name) or _BASIC[name]
        make = _bottleneck if name in _BOTTLENECK else _basic
        last = rows.conv_bn("stem", "data", 64, kernel=7, stride=2, relu=True)
        last = rows.add("stem_pool", "max_pool", last, kernel=3, stride=2)
        for stage, blocks in enumerate(stages, start=1):
            for block in range(1, blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                last = make(rows, f"stage{stage}_block{block}", last, 32 << stage, stride)
    last = rows.add("pool", "global_pool", last)
    rows.add("classifier", "dense", last, out_channels=num_classes)
    return Network(name, image_size, input_channels, num_classes, tuple(rows.layers))


def _basic(rows: _Rows, name: str, source: str, width: int, stride: int) -> str:
    inner = rows.conv_bn(f"{name}_conv1", source, width, kernel=3, stride=stride, relu=True)
    inner = rows.conv_bn(f"{name}_conv2", inner, width, kernel=3, ends_block=True)
    return _join(rows, name, source, inner, width, stride)


def _bottleneck(rows: _Rows, name: str, source: str, width: int, stride: int) -> str:
    inner = rows.conv_bn(f"{name}_conv1", source, width, relu=True)
    inner = rows.conv_bn(f"{name}_conv2", inner, width, kernel=3, stride=stride, relu=True)
    inner = rows.conv_bn(f"{name}_conv3", inner, 4 * width, ends_block=True)
    return _join(rows, name, source, inner, 4 * width, stride)


def _join(rows: _Rows, name: str, source: str, inner: str, width: int, stride: int) -> str:
    """Add the shortcut: the identity, or a projection where the shape changes (option B of the paper)."""
    shortcut = source
    if stride != 1 or rows.channels[source] != width:
        shortcut = rows.conv_bn(f"{name}_projection", source, width, stride=stride)
    rows.add(f"{name}_add", "add", inner, shortcut)
    return rows.add(f"{name}_relu", "relu", f"{name}_add")


@dataclass
class _Rows:
    """The table while it grows; knows each output's shape by its layer's name."""

    input_channels: int
    image_size: int
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channels = {"data": self.input_channels}
        self.sizes = {"data": self.image_size}

    # fmt: off
    def conv_bn(  # noqa: PLR0913 (a row has that many columns)
        self, name: str, source: str, width: int, *,
        kernel: int = 1, stride: int = 1, relu: bool = False, ends_block: bool = False,
    ) -> str:
        # fmt: on
        """Add a convolution, its batch norm and, where asked for, a ReLU."""
        last = self.add(name, "conv", source, out_channels=width, kernel=kernel, stride=stride)
        last = self.add(f"{name}_bn", "bn", last, ends_block=ends_block)
        return self.add(f"{name}_relu", "relu", last) if relu else last

    # fmt: off
    def add(
        self, name: str, kind: Kind, *inputs: str,
        out_channels: int | None = None, kernel: int = 1, stride: int = 1, ends_block: bool = False,
    ) -> str:
        # fmt: on
        """Append one row and return its name."""
        channels, size = self.channels[inputs[0]], self.sizes[inputs[0]]
        assert all(self._shape(each) == (channels, size) for each in inputs), f"{name}: inputs of different shapes"
        out_size = 1 if kind in ("global_pool", "dense") else -(-size // stride)
        width = channels if out_channels is None else out_channels
        self.layers.append(
            Layer(name, kind, inputs, channels, width, size, out_size, kernel, stride, ends_block=ends_block)
        )
        self.channels[name], self.sizes[name] = width, out_size
        return name

    def _shape(self, name: str) -> tuple[int, int]:
        return self.channels[name], self.sizes[name]


def gradient_bytes(parameters: Iterable[Parameter], bytes_per_number: int) -> list[int]:
    """Give each tensor's size on the wire, in the order given."""
    return [parameter.size * bytes_per_number for parameter in parameters]
