"""The kinds of layers: what each of them answers, see `train.networks.layer.Kind`. Pure.

A new kind is registered by a line of `KINDS`; docs/extending.md has a worked example.
"""

from collections.abc import Mapping, Sequence

from train.networks.layer import Kind, Layer, Parameter, Traffic


class _Convolution(Kind):
    def macs(self, layer: Layer) -> int:
        return layer.output_elements * layer.in_channels // layer.groups * layer.kernel**2

    def parameters(self, layer: Layer) -> tuple[Parameter, ...]:
        shape = layer.out_channels, layer.in_channels // layer.groups, layer.kernel, layer.kernel
        return _weight_and_bias(layer, shape)

    def spared(self, layer: Layer) -> float:
        """See `Kind`.

        *Source*: Winograd's F(2x2, 3x3) needs 16 multiplications in place of 36; 5x5 filters have F(2x2, 5x5) with 36
        in place of 100 (Lavin and Gray, arXiv:1509.09308). Convolutions in groups are not counted as fast ones.
        """
        is_fast = layer.stride == layer.groups == 1
        return {3: 36 / 16, 5: 100 / 36}.get(layer.kernel, 1.0) if is_fast else 1.0


class _Dense(Kind):
    def macs(self, layer: Layer) -> int:
        return layer.input_elements * layer.out_channels

    def parameters(self, layer: Layer) -> tuple[Parameter, ...]:
        return _weight_and_bias(layer, (layer.out_channels, layer.input_elements))


def _weight_and_bias(layer: Layer, shape: tuple[int, ...]) -> tuple[Parameter, ...]:
    weight = Parameter(f"{layer.name}_weight", "weight", shape)
    bias = Parameter(f"{layer.name}_bias", "bias", (layer.out_channels,), initial=0.0)
    return (weight, bias) if layer.has_bias else (weight,)


class _BatchNorm(Kind):
    def parameters(self, layer: Layer) -> tuple[Parameter, ...]:
        width = (layer.out_channels,)
        gamma = Parameter(f"{layer.name}_gamma", "gamma", width, initial=1.0)
        return (gamma, Parameter(f"{layer.name}_beta", "beta", width, initial=0.0))

    def statistics(self, layer: Layer) -> tuple[Parameter, ...]:
        width, initial = (layer.out_channels,), {"mean": 0.0, "var": 1.0}
        return tuple(
            Parameter(f"{layer.name}_moving_{name}", "statistic", width, value) for name, value in initial.items()
        )


class _Product(Kind):
    def out_size(self, sizes: Sequence[int], _kernel: int, _stride: int, _padding: int) -> int:
        assert set(sizes[1:]) == {1}, f"the second input of a product is no single pixel: {sizes}"
        return sizes[0]


class _Concatenation(Kind):
    def in_channels(self, channels: Sequence[int]) -> int:
        return sum(channels)


KINDS: Mapping[str, Kind] = {
    each.name: each
    for each in (
        _Convolution("conv", absorbs_affine=True),
        # It reads its input for the statistics and again for its output; in backward, input and gradient twice each.
        _BatchNorm(
            "bn",
            keeps_output=False,
            begins_stage=False,
            is_affine=True,
            backward=Traffic(5, fresh=3, span=2),
        ),
        Kind("relu", overwrites=True, begins_stage=False, has_kernel=False),
        Kind("relu6", overwrites=True, begins_stage=False, has_kernel=False),
        # It moves what a ReLU moves, but backward needs its input.
        Kind("silu", begins_stage=False, has_kernel=False),
        Kind("sigmoid"),
        # The gradient of an addition is the gradient of its output, which nothing has to copy. On an accelerator, it is
        # fused into the batch norm before it, which then has one more operand to read.
        Kind(
            "add",
            keeps_output=False,
            overwrites=True,
            forward=Traffic(1, fresh=0, span=1),
        ),
        # It reads its input and its gradient once for both inputs' gradients, one of which is a single pixel.
        _Product("multiply", keeps_output=False, backward=Traffic(3, fresh=1, span=1)),
        _Concatenation("concat"),
        Kind("max_pool"),
        Kind("avg_pool"),
        Kind("global_pool", makes_pixel=True),
        Kind("dropout", draws="elements"),
        _Dense("dense", makes_pixel=True),
    )
}
"""Name -> kind. What each computes stands in the engines' tables ``OPERATORS``."""
