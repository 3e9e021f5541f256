"""Batch norm, the addition behind it and the ReLU behind both as one operator of PyTorch each way.

``torch.compile`` and CUDA graphs take the operators as they are. They are Triton's kernels
(`train.engine.torch.norm_kernels`); on a CPU, PyTorch's operators compute the same. Statistics, gamma, beta and
everything between input and output are float32; output and gradients are rounded once, to the type of the input.
"""

from typing import Any

import torch
from torch import Tensor

from train.engine.torch.compiling import computed_by

_LAYOUT = torch.channels_last

_NAMES = "resnet_records::batch_norm", "resnet_records::batch_norm_backward"
_SCHEMAS = (
    "(Tensor x, Tensor gamma, Tensor beta, Tensor? addend, float epsilon, bool has_relu) -> (Tensor, Tensor, Tensor)",
    "(Tensor gradient, Tensor x, Tensor? output, Tensor gamma, Tensor beta, Tensor mean, Tensor inverse_std, "
    "bool has_relu) -> (Tensor, Tensor, Tensor, Tensor)",
)
for _name, _schema, _kernels in zip(_NAMES, _SCHEMAS, ("forward", "backward"), strict=True):
    # Not torch.library.custom_op, which imports the compiler and takes longer for each call.
    torch.library.define(_name, _schema, tags=(torch.Tag.pt2_compliant_tag,))
    # On a CPU, Triton's interpreter computes them in tests.
    torch.library.impl(_name, ("cuda", "cpu"), computed_by("norm_kernels", _kernels))


def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, addend: Tensor | None, epsilon: float, *, has_relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``relu((x - mean) / std * gamma + beta + addend)``, and mean and 1 / std of each channel.

    Args:
        x: Shape [N, C, H, W]; the output has its type, and lies in channels last.
        gamma: Float32, shape (C,).
        beta: Likewise.
        addend: Of the shape and type of ``x``, or None.
        epsilon: Added to the variance, which is that of the batch itself.
        has_relu: Whether negative outputs become 0.
    """
    if x.device.type != "cpu":
        results: tuple[Tensor, Tensor, Tensor] = torch.ops.resnet_records.batch_norm(
            x, gamma, beta, addend, epsilon, has_relu
        )
        return results
    exact = x.float()
    variance, mean = torch.var_mean(exact, (0, 2, 3), correction=0)
    inverse_std = (variance + epsilon).rsqrt()
    center, scale, shift = (each[:, None, None] for each in (mean, inverse_std * gamma, beta))
    output = (exact - center) * scale + shift
    if addend is not None:
        output = output + addend
    output = (output.relu() if has_relu else output).to(x.dtype, memory_format=_LAYOUT)
    return output, mean.detach(), inverse_std.detach()


@torch.library.register_fake(_NAMES[0])
def _shape_of_output(x: Tensor, gamma: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x, memory_format=_LAYOUT), torch.empty_like(gamma), torch.empty_like(gamma)


@torch.library.register_fake(_NAMES[1])
def _shapes_of_gradients(
    gradient: Tensor, x: Tensor, output: Tensor | None, gamma: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_x = torch.empty_like(x, memory_format=_LAYOUT)
    of_addend = x.new_empty(0) if output is None else torch.empty_like(of_x)
    return of_x, torch.empty_like(gamma), torch.empty_like(gamma), of_addend


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, gamma, beta, addend, _, ctx.has_relu = inputs
    result, mean, inverse_std = output
    ctx.has_addend, ctx.needs_output = addend is not None, addend is not None and ctx.has_relu
    ctx.mark_non_differentiable(mean, inverse_std)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, gamma, beta, mean, inverse_std, *([result] if ctx.needs_output else []))


def _differentiate(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, gamma, beta, mean, inverse_std, *output = ctx.saved_tensors
    *gradients, of_addend = torch.ops.resnet_records.batch_norm_backward(
        gradient, x, output[0] if output else None, gamma, beta, mean, inverse_std, ctx.has_relu
    )
    # Without a ReLU, the gradient of the sum is the gradient of the addend.
    passed = of_addend if ctx.needs_output else gradient
    return *gradients, passed if ctx.has_addend else None, None, None


torch.library.register_autograd(_NAMES[0], _differentiate, setup_context=_keep)
