"""Every network as a table of layers: shapes, multiply-adds, parameters. Pure: imports no framework.

An engine turns a table into a network, and the planner and the simulator read the same rows, so the three cannot
disagree. `configs.networks.NETWORKS` names the module that has the rows of each network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError, near
from configs.networks import BACKBONE, NETWORKS
from train.networks.kinds import KINDS
from train.networks.layer import Kind, Layer, Parameter

if TYPE_CHECKING:
    # The programs of the peers build the same networks in an environment without pydantic.
    from configs.schema import Model


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
        return tuple(parameter for layer in self.layers if not layer.is_frozen for parameter in layer.parameters)

    @cached_property
    def constants(self) -> tuple[Parameter, ...]:
        """Return all tensors of frozen layers, first layer first."""
        frozen = [layer for layer in self.layers if layer.is_frozen]
        return tuple(each for layer in frozen for each in (*layer.parameters, *layer.statistics))

    @property
    def num_parameters(self) -> int:
        """Return the number of trainable elements."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def num_constants(self) -> int:
        """Return the number of elements of frozen layers' tensors."""
        return sum(each.size for each in self.constants)

    @property
    def macs(self) -> int:
        """Return the multiply-adds of the forward pass for one image."""
        return sum(layer.macs for layer in self.layers)

    @cached_property
    def statistics(self) -> tuple[Parameter, ...]:
        """Return all running statistics that training moves, first layer first."""
        return tuple(statistic for layer in self.layers if not layer.is_frozen for statistic in layer.statistics)

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name -> shape (OIHW) of every tensor, frozen ones too, by layer, as Gluon orders them."""
        return {name: shape for layer in self.layers for name, shape in layer.tensor_shapes.items()}

    @property
    def draws(self) -> bool:
        """Return whether a layer draws random numbers in training."""
        return any(layer.kind.draws for layer in self.layers)

    def foldable_convolutions(self) -> frozenset[str]:
        """Return the names of the convolutions whose output only a batch norm reads: inference can merge the two."""
        readers: dict[str, list[Kind]] = {}
        for layer in self.layers:
            for name in layer.inputs:
                readers.setdefault(name, []).append(layer.kind)
        return frozenset(
            each.name
            for each in self.layers
            if each.kind.absorbs_affine and [kind.is_affine for kind in readers.get(each.name, [])] == [True]
        )


@dataclass
class Rows:
    """A table under construction; the input images have the name ``data``.

    Attributes:
        residual: The values of a recipe's ``model.residual`` by key; those that are missing have their defaults.
        activation: Kind of the layers that stand where most networks have a ReLU behind a batch norm.
        channels: Name of a layer -> channels of its output.
        sizes: Name of a layer -> side of its output, px.
    """

    input_channels: int
    image_size: int
    residual: Mapping[str, Any] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    activation: str = "relu"

    def __post_init__(self) -> None:
        self.channels = {"data": self.input_channels}
        self.sizes = {"data": self.image_size}

    def add(
        self,
        name: str,
        kind_name: str,
        *inputs: str,
        out_channels: int | None = None,
        padding: int | None = None,
        **properties: Any,
    ) -> str:
        """Append one layer and return its name.

        ``kind_name`` is a key of `KINDS`. If ``padding`` is None, it is (kernel - 1) // 2, which keeps the image size
        at stride 1 and an odd kernel. ``properties`` are fields of `Layer`, such as ``kernel`` and ``stride``.
        """
        kind, sizes = KINDS[kind_name], [self.sizes[each] for each in inputs]
        in_channels = kind.in_channels([self.channels[each] for each in inputs])
        width = in_channels if out_channels is None else out_channels
        layer = Layer(name, kind, inputs, in_channels, width, sizes[0], out_size=0, **properties)
        margin = (layer.kernel - 1) // 2 if padding is None else padding
        out_size, groups = kind.out_size(sizes, layer.kernel, layer.stride, margin), layer.groups
        assert out_size >= 1, f"{name}: nothing is left of {sizes[0]} px"
        assert not (in_channels % groups or width % groups), f"{name}: {groups} groups of {in_channels} to {width}"
        self.layers.append(replace(layer, out_size=out_size, padding=margin))
        self.channels[name], self.sizes[name] = width, out_size
        return name

    def conv_bn(
        self, name: str, source: str, width: int, *, relu: bool = False, ends_block: bool = False, **properties: Any
    ) -> str:
        """Append a convolution, its batch norm and, if ``relu``, the `activation`; return the name of the last."""
        last = self.add(name, "conv", source, out_channels=width, **properties)
        last = self.add(f"{name}_bn", "bn", last, ends_block=ends_block)
        return self.activated(name, last) if relu else last

    def activated(self, name: str, source: str) -> str:
        """Append the `activation` of a layer or a block; return its name."""
        return self.add(f"{name}_{self.activation}", self.activation, source)

    def conv_relu(self, name: str, source: str, width: int, **properties: Any) -> str:
        """Append a convolution with bias and a ReLU; return the name of the ReLU."""
        last = self.add(name, "conv", source, out_channels=width, has_bias=True, **properties)
        return self.add(f"{name}_relu", "relu", last)

    def dense_relu(self, name: str, source: str, width: int) -> str:
        """Append a dense layer and a ReLU; return the name of the ReLU."""
        return self.add(f"{name}_relu", "relu", self.dense(name, source, width))

    def dense(self, name: str, source: str, width: int) -> str:
        """Append a dense layer over all elements of ``source``; return its name."""
        return self.add(name, "dense", source, out_channels=width, has_bias=True)


def build_network(  # noqa: PLR0913 (each is a key of a recipe)
    name: str,
    *,
    num_classes: int,
    image_size: int,
    input_channels: int = 3,
    residual: Sequence[tuple[str, Any]] = (),
    frozen: Sequence[str] = (),
    stochastic_depth: float = 0.0,
) -> Network:
    """Return the table of a network.

    Args:
        name: A key of `configs.networks.NETWORKS`. Its module has a function ``add_layers(name, rows)``, which adds the
            rows before the classifier and returns the name of the last of them.
        num_classes: Width of the classifier.
        image_size: Side of the square input, px.
        input_channels: 3; 4 where a zero channel pads the input for tensor cores; 1 for grey images.
        residual: Keys and values of a recipe's block ``model.residual``; those that are missing have their defaults.
        frozen: The recipe's ``model.frozen``.
        stochastic_depth: The recipe's ``model.stochastic_depth``.

    Raises:
        ConfigError: ``frozen`` names no layer of the network, or leaves none to train; or the network has no residual
            block for stochastic depth.
    """
    rows = Rows(input_channels, image_size, dict(residual))
    rows.dense("classifier", import_module(NETWORKS[name].module).add_layers(name, rows), num_classes)
    layers = _with_frozen(name, rows.layers, frozen) if frozen else rows.layers
    layers = _with_stochastic_depth(name, layers, stochastic_depth) if stochastic_depth else layers
    return Network(name, image_size, input_channels, num_classes, tuple(layers))


def _with_frozen(network: str, layers: Sequence[Layer], words: Sequence[str]) -> list[Layer]:
    """Return the layers, of which those are frozen that ``model.frozen`` names."""
    names = [layer.name for layer in layers if layer.parameters]
    meant = {BACKBONE: names[:-1]}
    for name in names:
        parts = name.split("_")
        for count in range(1, len(parts) + 1):
            meant.setdefault("_".join(parts[:count]), []).append(name)
    for word in words:
        if word not in meant:
            first = dict.fromkeys(name.partition("_")[0] for name in names)
            allowed = f"{BACKBONE}, or the names of layers of {network}, or what they begin with: {', '.join(first)}"
            raise ConfigError("model.frozen", word, allowed, near(word, meant))
    frozen = {name for word in words for name in meant[word]}
    if frozen.issuperset(names):
        raise ConfigError("model.frozen", [*words], "a part of the layers; at least one must be trained")
    return [replace(layer, is_frozen=layer.name in frozen) for layer in layers]


def _with_stochastic_depth(network: str, layers: Sequence[Layer], rate: float) -> list[Layer]:
    """Return the layers, with one more before each addition, which drops the branch of the residual block.

    The branch is the first input of an addition. The rates rise from block to block by the linear rule of Huang et al.,
    arXiv:1603.09382 (equation 4).
    """
    depth = sum(layer.kind.name == "add" for layer in layers)
    if not depth:
        raise ConfigError("model.stochastic_depth", rate, f"0 for {network}, which has no residual blocks")
    kind = replace(KINDS["dropout"], name="stochastic_depth", keeps_output=False, overwrites=True, draws="images")
    made: list[Layer] = []
    number = 0
    for layer in layers:
        kept = layer
        if layer.kind.name == "add":
            number += 1
            branch, *others = layer.inputs
            name, share = f"{layer.name}_depth", rate * number / depth
            made.append(replace(layer, name=name, kind=kind, inputs=(branch,), rate=share))
            kept = replace(layer, inputs=(name, *others))
        made.append(kept)
    return made


def network_arguments(model: Model) -> dict[str, Any]:
    """Return the arguments of `build_network` for a recipe's block ``model``."""
    plain = model.model_dump(include={"name", "num_classes", "image_size", "input_channels", "stochastic_depth"})
    return plain | {"residual": tuple(dict(model.residual).items()), "frozen": model.frozen}


def network_of(model: Model) -> Network:
    """Return the table of the network that a recipe's block ``model`` describes."""
    return _build_once(**network_arguments(model))


_build_once = lru_cache(maxsize=64)(build_network)
"""A plan asks for the same table many times."""


def float32_gradients(parameters: Iterable[Parameter], bytes_per_number: int) -> frozenset[int]:
    """Return the indices of the gradients that are float32 although others have fewer bytes; empty if none has."""
    is_shorter = bytes_per_number < 4  # noqa: PLR2004
    return frozenset(index for index, each in enumerate(parameters) if is_shorter and each.is_norm)


def gradient_bytes(parameters: Iterable[Parameter], bytes_per_number: int) -> list[int]:
    """Return each tensor's gradient size in bytes, in the order given; those of batch norm are always float32."""
    return [each.size * (4 if each.is_norm else bytes_per_number) for each in parameters]
