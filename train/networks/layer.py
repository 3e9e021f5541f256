"""A layer, its parameters, and what the program asks of a kind of layer. Pure: imports no framework.

The kinds are in `train.networks.kinds`. What a kind computes is registered in each engine.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor, or one running statistic, which training moves without a gradient.

    Attributes:
        name: The layer's name and what the tensor is, such as ``stem_weight``.
        kind: By which a recipe excludes tensors from weight decay and trust ratio.
        shape: In the NCHW convention (OIHW).
        initial: The value of all elements before training. If None, they are drawn.
    """

    name: str
    kind: Literal["weight", "gamma", "beta", "bias", "statistic"]
    shape: tuple[int, ...]
    initial: float | None = None

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def is_norm(self) -> bool:
        """Return whether this is a tensor of a norm; these and their gradients are float32 in every precision."""
        return self.kind in ("gamma", "beta", "statistic")

    @property
    def is_matrix(self) -> bool:
        """Return whether this is the weight of a product, a convolution's or a dense layer's."""
        return self.kind == "weight"


class Traffic(NamedTuple):
    """What a kernel without arithmetic moves for each image, see `train.sim.step_time.Kernel`.

    Attributes:
        numbers: Numbers read or written.
        fresh: Of these, read or written just before, by this kernel or the one before it.
        span: Numbers between the two uses of a fresh one.
    """

    numbers: float
    fresh: float
    span: float


@dataclass(frozen=True)
class Kind:
    """What the program asks of a kind of layer. The defaults are those of an activation, such as the sigmoid.

    Attributes:
        name: Its name in tables, and in the registrations of its operator.
        makes_pixel: Whether the output is a single pixel, whatever the input.
        keeps_output: Whether the backward pass needs a layer's output even if a layer behind it overwrites its input.
        overwrites: Whether a layer overwrites an input in training that nothing else reads.
        draws: What it drops at random in training, by a seed that the host sets in each step: elements, or all elements
            of an image together. If empty, it draws nothing.
        is_affine: Whether it multiplies each channel by a number and adds one in inference.
        absorbs_affine: Whether an affine layer behind it can become part of its weight and bias in inference.
        begins_stage: Whether a stage that is compiled may begin with such a layer; False for one that belongs to the
            kernels of the layer before it.
        has_kernel: Whether it has a kernel of its own on an accelerator.
        forward: Traffic of the forward kernel in multiples of the output's elements. If None, the kernel reads the
            input, which is fresh, and writes the output.
        backward: The same of the backward kernel, whose gradient is fresh.
    """

    name: str
    _: KW_ONLY
    makes_pixel: bool = False
    keeps_output: bool = True
    overwrites: bool = False
    draws: Literal["", "elements", "images"] = ""
    is_affine: bool = False
    absorbs_affine: bool = False
    begins_stage: bool = True
    has_kernel: bool = True
    forward: Traffic | None = None
    backward: Traffic | None = None

    @property
    def operator(self) -> str:
        """Return the key of its operator in the engines' tables; all kinds that draw have that of dropout."""
        return "dropout" if self.draws else self.name

    def in_channels(self, channels: Sequence[int]) -> int:
        """Return the channels that a layer reads, given those of each input."""
        assert len(set(channels)) == 1, f"inputs of different widths: {channels}"
        return channels[0]

    def out_size(self, sizes: Sequence[int], kernel: int, stride: int, padding: int) -> int:
        """Return the side of the output, px, given the side of each input and the window."""
        assert len(set(sizes)) == 1, f"inputs of different sizes: {sizes}"
        return 1 if self.makes_pixel else (sizes[0] + 2 * padding - kernel) // stride + 1

    def macs(self, _layer: "Layer") -> int:
        """Return the multiply-adds of the forward pass for one image; only those of products count."""
        return 0

    def parameters(self, _layer: "Layer") -> tuple[Parameter, ...]:
        """Return the trainable tensors, in the order of `train.networks.arch.Network.parameters`."""
        return ()

    def statistics(self, _layer: "Layer") -> tuple[Parameter, ...]:
        """Return the running statistics: of an affine layer its mean and its variance."""
        return ()

    def spared(self, _layer: "Layer") -> float:
        """Return by how much fast algorithms cut the multiplications of a layer where there are no matrix units."""
        return 1.0


@dataclass(frozen=True)
class Layer:
    """One layer: the layers that it reads, and its geometry for one square image (sides in pixels).

    ``in_channels`` of a concatenation is the sum over its inputs. A product multiplies each channel of its first input
    by the single pixel of its second. A dense layer reads its input channel by channel. Each of the ``groups`` of a
    convolution's outputs reads its own share of the input's channels; with as many groups as channels, the convolution
    is depthwise. ``rate`` is the share of elements or images that a layer drops, see `Kind.draws`. ``ends_block`` marks
    the last batch norm of a residual block. The tensors of a frozen layer keep their values in training, and a frozen
    batch norm normalises as in inference.
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
    groups: int = 1
    has_bias: bool = False
    rate: float = 0.0
    ends_block: bool = False
    is_frozen: bool = False

    @property
    def macs(self) -> int:
        """Return the multiply-adds of the forward pass for one image; layers without products count 0."""
        return self.kind.macs(self)

    @property
    def input_elements(self) -> int:
        """Return the number of elements for one image of an input, or of all together that a concatenation reads."""
        return self.in_channels * self.in_size**2

    @property
    def output_elements(self) -> int:
        """Return the number of elements of the output for one image."""
        return self.out_channels * self.out_size**2

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return what would be trained of the layer if it were not frozen, in the order of the network's."""
        return self.kind.parameters(self)

    @property
    def statistics(self) -> tuple[Parameter, ...]:
        """Return the running statistics."""
        return self.kind.statistics(self)

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name -> shape (OIHW) of every parameter and then every running statistic."""
        parameters = {each.name: each.shape for each in self.parameters}
        return parameters | {each.name: each.shape for each in self.statistics}
