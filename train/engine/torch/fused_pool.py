"""Max pooling that keeps for each output the place of the maximum in its window, in one byte, as operators of PyTorch.

PyTorch's own operator keeps eight bytes. The operators are Triton's kernels (`train.engine.torch.pool_kernels`).
"""

from typing import Any

import torch
from torch import Tensor

from train.engine.torch.compiling import computed_by

LAYOUT = torch.channels_last

_NAMES = "resnet_records::max_pool", "resnet_records::max_pool_backward"
_WINDOW = "int kernel, int stride, int padding"
_SCHEMAS = (
    f"(Tensor x, {_WINDOW}) -> (Tensor, Tensor)",
    f"(Tensor gradient, Tensor places, int height, int width, {_WINDOW}) -> Tensor",
)
for _name, _schema, _kernel in zip(_NAMES, _SCHEMAS, ("forward", "backward"), strict=True):
    torch.library.define(_name, _schema, tags=(torch.Tag.pt2_compliant_tag,))
    # On a CPU, Triton's interpreter computes them in tests.
    torch.library.impl(_name, ("cuda", "cpu"), computed_by("pool_kernels", _kernel))


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Return the maximum of each window; the gradient is that of the first of equal ones.

    Args:
        x: Shape [N, C, H, W]; the output has its type, and lies in channels last.
        kernel: Side of a window, at most 15 px.
        stride: Pixels from one window to the next.
        padding: Pixels by which windows reach beyond each edge of the image, where nothing is a maximum.
    """
    output: Tensor = torch.ops.resnet_records.max_pool(x, kernel, stride, padding)[0]
    return output


@torch.library.register_fake(_NAMES[0])
def empty_output(x: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Return memory for an output and for its places."""
    sides = [(side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:]]
    output = torch.empty((*x.shape[:2], *sides), dtype=x.dtype, device=x.device, memory_format=LAYOUT)
    return output, torch.empty_like(output, dtype=torch.uint8)


@torch.library.register_fake(_NAMES[1])
def empty_input(gradient: Tensor, _places: Tensor, height: int, width: int, *_: int) -> Tensor:
    """Return memory for the gradient of an input."""
    shape = (*gradient.shape[:2], height, width)
    return torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=LAYOUT)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *ctx.window = inputs
    ctx.sides = x.shape[2:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (places,) = ctx.saved_tensors
    of_x = torch.ops.resnet_records.max_pool_backward(gradient, places, *ctx.sides, *ctx.window)
    return of_x, *[None] * len(ctx.window)


torch.library.register_autograd(_NAMES[0], _differentiate, setup_context=_keep)
