"""What a network's table is made of: rows of layers, and the tensors that they train. Pure: imports no framework."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Kind", "Layer", "Network", "Parameter", "Rows", "gradient_bytes"]

Kind = Literal[
    "conv", "bn", "relu", "add", "concat", "max_pool", "avg_pool", "global_pool", "dropout", "dense",
]  # fmt: skip


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
    """One row: what it reads, and its geometry for one image (sides in pixels, square).

    ``in_channels`` of a concatenation are those of all its inputs together; a dense layer reads the channels one
    after the other, each whole. ``rate`` is the share that a dropout sets to 0.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    in_channels: int
    out_channels: int
    in_size: int
    out_size: int
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    has_bias: bool = False
    rate: float = 0.0
    ends_block: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass for one image; what is neither conv nor dense counts as nothing."""
        if self.kind == "conv":
            return self.out_size**2 * self.out_channels * self.in_channels * self.kernel**2
        return self.in_size**2 * self.in_channels * self.out_channels if self.kind == "dense" else 0

    @property
    def output_elements(self) -> int:
        """Numbers in its output for one image."""
        return self.out_channels * self.out_size**2

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Trainable tensors, in the order in which the network holds them."""
        width = (self.out_channels,)
        if self.kind == "bn":
            return (Parameter(f"{self.name}_gamma", "gamma", width), Parameter(f"{self.name}_beta", "beta", width))
        if self.kind == "conv":
            shape: tuple[int, ...] = (self.out_channels, self.in_channels, self.kernel, self.kernel)
        elif self.kind == "dense":
            shape = (self.out_channels, self.in_channels * self.in_size**2)
        else:
            return ()
        weight = Parameter(f"{self.name}_weight", "weight", shape)
        return (weight, Parameter(f"{self.name}_bias", "bias", width)) if self.has_bias else (weight,)


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


@dataclass
class Rows:
    """A table while it grows; knows each output's shape by its layer's name, and calls the images ``data``."""

    input_channels: int
    image_size: int
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channels = {"data": self.input_channels}
        self.sizes = {"data": self.image_size}

    # fmt: off
    def add(  # noqa: PLR0913 (a row has that many columns)
        self, name: str, kind: Kind, *inputs: str,
        out_channels: int | None = None, kernel: int = 1, stride: int = 1, padding: int | None = None,
        has_bias: bool = False, rate: float = 0.0, ends_block: bool = False,
    ) -> str:
        # fmt: on
        """Append one row and return its name; without ``padding``, a stride of 1 keeps the size of an odd kernel."""
        channels, size = [self.channels[each] for each in inputs], self.sizes[inputs[0]]
        assert {self.sizes[each] for each in inputs} == {size}, f"{name}: inputs of different sizes"
        assert kind == "concat" or len(set(channels)) == 1, f"{name}: inputs of different widths"
        margin = (kernel - 1) // 2 if padding is None else padding
        out_size = 1 if kind in ("global_pool", "dense") else (size + 2 * margin - kernel) // stride + 1
        assert out_size >= 1, f"{name}: nothing is left of {size} px"
        in_channels = sum(channels) if kind == "concat" else channels[0]
        width = in_channels if out_channels is None else out_channels
        self.layers.append(Layer(
            name, kind, inputs, in_channels, width, size, out_size, kernel, stride, margin,
            has_bias=has_bias, rate=rate, ends_block=ends_block,
        ))  # fmt: skip
        self.channels[name], self.sizes[name] = width, out_size
        return name

    # fmt: off
    def conv_bn(  # noqa: PLR0913
        self, name: str, source: str, width: int, *,
        kernel: int = 1, stride: int = 1, relu: bool = False, ends_block: bool = False,
    ) -> str:
        # fmt: on
        """Add a convolution, its batch norm and, where asked for, a ReLU."""
        last = self.add(name, "conv", source, out_channels=width, kernel=kernel, stride=stride)
        last = self.add(f"{name}_bn", "bn", last, ends_block=ends_block)
        return self.add(f"{name}_relu", "relu", last) if relu else last

    # fmt: off
    def conv_relu(
        self, name: str, source: str, width: int, *, kernel: int = 1, stride: int = 1, padding: int | None = None,
    ) -> str:
        # fmt: on
        """Add a convolution with bias and a ReLU."""
        last = self.add(
            name, "conv", source, out_channels=width, kernel=kernel, stride=stride, padding=padding, has_bias=True
        )
        return self.add(f"{name}_relu", "relu", last)

    def dense_relu(self, name: str, source: str, width: int) -> str:
        """Add a dense layer and a ReLU."""
        return self.add(f"{name}_relu", "relu", self.dense(name, source, width))

    def dense(self, name: str, source: str, width: int) -> str:
        """Add a dense layer over all that ``source`` gives."""
        return self.add(name, "dense", source, out_channels=width, has_bias=True)


def gradient_bytes(parameters: Iterable[Parameter], bytes_per_number: int) -> list[int]:
    """Give each tensor's size on the wire, in the order given; batch norm's stay float32 in any precision."""
    return [each.size * (4 if each.kind in ("gamma", "beta") else bytes_per_number) for each in parameters]
