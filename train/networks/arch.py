"""Every network as a table of layers: shapes, multiply-adds, parameters. Pure: imports no framework.

An engine turns a table into a network, and the planner and the simulator read the same rows, so the three cannot
disagree. `configs.networks.NETWORKS` names the module that has the rows of each network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from configs.networks import NETWORKS
from configs.registry import module_of

if TYPE_CHECKING:
    # The programs of the peers build the same networks in an environment without pydantic.
    from configs.schema import Model

Kind = Literal[
    "conv", "bn", "relu", "sigmoid", "add", "multiply", "concat", "max_pool", "avg_pool", "global_pool", "dropout",
    "dense",
]  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor: ``kind`` is weight, gamma, beta or bias; ``shape`` in the NCHW convention (OIHW)."""

    name: str
    kind: Literal["weight", "gamma", "beta", "bias"]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        product = 1
        for side in self.shape:
            product *= side
        return product


@dataclass(frozen=True)
class Layer:
    """One layer: the layers that it reads, and its geometry for one square image (sides in pixels).

    ``in_channels`` of a concatenation is the sum over its inputs. A product multiplies each channel of its first input
    by the single pixel of its second. A dense layer reads its input channel by channel. ``rate`` is the share of
    elements that dropout sets to 0. ``ends_block`` marks the last batch norm of a residual block.
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
        """Return the multiply-adds of the forward pass for one image; layers other than conv and dense count 0."""
        if self.kind == "conv":
            return self.out_size**2 * self.out_channels * self.in_channels * self.kernel**2
        return self.in_size**2 * self.in_channels * self.out_channels if self.kind == "dense" else 0

    @property
    def output_elements(self) -> int:
        """Return the number of elements of the output for one image."""
        return self.out_channels * self.out_size**2

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the trainable tensors, in the order of `Network.parameters`."""
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
    """The layers of a network in forward order; the last layer is the classifier."""

    name: str
    image_size: int
    input_channels: int
    num_classes: int
    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return all trainable tensors, first layer first."""
        return tuple(parameter for layer in self.layers for parameter in layer.parameters)

    @property
    def num_parameters(self) -> int:
        """Return the number of trainable elements."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def macs(self) -> int:
        """Return the multiply-adds of the forward pass for one image."""
        return sum(layer.macs for layer in self.layers)

    def foldable_convolutions(self) -> frozenset[str]:
        """Return the names of the convolutions whose output only a batch norm reads: inference can merge the two."""
        readers: dict[str, list[Kind]] = {}
        for layer in self.layers:
            for name in layer.inputs:
                readers.setdefault(name, []).append(layer.kind)
        return frozenset(each.name for each in self.layers if each.kind == "conv" and readers.get(each.name) == ["bn"])


@dataclass
class Rows:
    """A table under construction; the input images have the name ``data``.

    Attributes:
        residual: The values of a recipe's ``model.residual`` by key; those that are missing have their defaults.
        channels: Name of a layer -> channels of its output.
        sizes: Name of a layer -> side of its output, px.
    """

    input_channels: int
    image_size: int
    residual: Mapping[str, Any] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channels = {"data": self.input_channels}
        self.sizes = {"data": self.image_size}

    # fmt: off
    def add(  # noqa: PLR0913 (a layer has so many properties)
        self, name: str, kind: Kind, *inputs: str,
        out_channels: int | None = None, kernel: int = 1, stride: int = 1, padding: int | None = None,
        has_bias: bool = False, rate: float = 0.0, ends_block: bool = False,
    ) -> str:
        # fmt: on
        """Append one layer and return its name.

        If ``padding`` is None, it is (kernel - 1) // 2, which keeps the image size at stride 1 and an odd kernel.
        """
        channels, size = [self.channels[each] for each in inputs], self.sizes[inputs[0]]
        others = {self.sizes[each] for each in inputs[1:]}
        assert others <= {1 if kind == "multiply" else size}, f"{name}: inputs of different sizes"
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
        """Append a convolution, its batch norm and, if ``relu``, a ReLU; return the name of the last layer."""
        last = self.add(name, "conv", source, out_channels=width, kernel=kernel, stride=stride)
        last = self.add(f"{name}_bn", "bn", last, ends_block=ends_block)
        return self.add(f"{name}_relu", "relu", last) if relu else last

    # fmt: off
    def conv_relu(
        self, name: str, source: str, width: int, *, kernel: int = 1, stride: int = 1, padding: int | None = None,
    ) -> str:
        # fmt: on
        """Append a convolution with bias and a ReLU; return the name of the ReLU."""
        last = self.add(
            name, "conv", source, out_channels=width, kernel=kernel, stride=stride, padding=padding, has_bias=True
        )
        return self.add(f"{name}_relu", "relu", last)

    def dense_relu(self, name: str, source: str, width: int) -> str:
        """Append a dense layer and a ReLU; return the name of the ReLU."""
        return self.add(f"{name}_relu", "relu", self.dense(name, source, width))

    def dense(self, name: str, source: str, width: int) -> str:
        """Append a dense layer over all elements of ``source``; return its name."""
        return self.add(name, "dense", source, out_channels=width, has_bias=True)


def build_network(
    name: str, *, num_classes: int, image_size: int, input_channels: int = 3, residual: Sequence[tuple[str, Any]] = ()
) -> Network:
    """Return the table of a network.

    Args:
        name: A key of `configs.networks.NETWORKS`. Its module has a function ``add_layers(name, rows)``, which adds the
            rows before the classifier and returns the name of the last of them.
        num_classes: Width of the classifier.
        image_size: Side of the square input, px.
        input_channels: 3; 4 where a zero channel pads the input for tensor cores; 1 for grey images.
        residual: Keys and values of a recipe's block ``model.residual``; those that are missing have their defaults.
    """
    rows = Rows(input_channels, image_size, dict(residual))
    modules = {key: entry.module for key, entry in NETWORKS.items()}
    rows.dense("classifier", module_of(modules, name).add_layers(name, rows), num_classes)
    return Network(name, image_size, input_channels, num_classes, tuple(rows.layers))


def network_arguments(model: Model) -> dict[str, Any]:
    """Return the arguments of `build_network` for a recipe's block ``model``."""
    plain = model.model_dump(include={"name", "num_classes", "image_size", "input_channels"})
    return plain | {"residual": tuple(dict(model.residual).items())}


def network_of(model: Model) -> Network:
    """Return the table of the network that a recipe's block ``model`` describes."""
    return build_network(**network_arguments(model))


def float32_gradients(parameters: Iterable[Parameter], bytes_per_number: int) -> frozenset[int]:
    """Return the indices of the gradients that are float32 although others have fewer bytes; empty if none has."""
    kinds = enumerate(each.kind for each in parameters)
    return frozenset(index for index, kind in kinds if bytes_per_number < 4 and kind in ("gamma", "beta"))  # noqa: PLR2004


def gradient_bytes(parameters: Iterable[Parameter], bytes_per_number: int) -> list[int]:
    """Return each tensor's gradient size in bytes, in the order given; those of batch norm are always float32."""
    return [each.size * (4 if each.kind in ("gamma", "beta") else bytes_per_number) for each in parameters]
