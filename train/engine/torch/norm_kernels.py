"""Batch norm, addition and ReLU as Triton kernels: three launches forward, and three backward.

An activation [N, C, H, W] in NHWC is a matrix in memory, with a row for each pixel and a column for each channel.
Sums over rows are made in two stages, of parts of the rows and then of the parts, both in a fixed order: a run repeats
its bits. Importing this module imports Triton, which comes with PyTorch for CUDA.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096
"""Numbers of a tile, 16 for each thread."""
_MOST_COLUMNS = 64
"""Columns of a tile: 128 bytes of a row in 16 bits, which a GPU reads at once."""
_WARPS = 8
PROGRAMS = 1024
"""Programs that sum: about eight for each multiprocessor of an H100. More would only make more parts to sum."""
_PARTS, _FEW_COLUMNS = 64, 16
"""Tile of the sums of parts."""


@triton.jit
def _tile(start, end, columns, channels, BLOCK_R: tl.constexpr):
    """Return the places of a tile that begins at a row, and which of them exist."""
    rows = start + tl.arange(0, BLOCK_R)
    places = rows.to(tl.int64)[:, None] * channels + columns[None, :]
    return places, (rows < end)[:, None] & (columns < channels)[None, :]


@triton.jit
def _normalised(values, mean, inverse_std, gamma, beta):
    return (values - mean[None, :]) * (inverse_std * gamma)[None, :] + beta[None, :]


@triton.jit
def _sum_moments(
    x, means, squares, rows, channels, chunk, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the mean of a part of the rows, and the sum of its squared distances from that mean.

    *Source*: Welford's update, for each row of the tile by itself; Chan, Golub and LeVeque (1979) join the rows.
    """
    first = tl.program_id(0) * chunk
    end = tl.minimum(first + chunk, rows)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    count = tl.zeros([BLOCK_R, 1], tl.float32)
    for start in range(first, end, BLOCK_R):
        places, exist = _tile(start, end, columns, channels, BLOCK_R)
        values = tl.load(x + places, mask=exist, other=0).to(tl.float32)
        count += tl.where(start + tl.arange(0, BLOCK_R)[:, None] < end, 1.0, 0.0)
        change = tl.where(exist, values - mean, 0.0)
        mean += change * (1 / tl.maximum(count, 1.0))
        square += change * (values - mean)
    center = tl.sum(count * mean, 0) / (end - first)
    square += count * (mean - center[None, :]) * (mean - center[None, :])
    place = tl.program_id(0) * channels + columns
    tl.store(means + place, center, mask=columns < channels)
    tl.store(squares + place, tl.sum(square, 0), mask=columns < channels)


@triton.jit
def _rows_of(start, rows, chunk, BLOCK_P: tl.constexpr):
    """Return the rows of each part of a tile of parts."""
    first = (start + tl.arange(0, BLOCK_P)) * chunk
    return tl.maximum(tl.minimum(rows - first, chunk), 0).to(tl.float32)[:, None]


@triton.jit
def _join_moments(
    means, squares, mean, inverse_std, rows, channels, parts, chunk, epsilon,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the mean and the inverse standard deviation of all rows."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        places, exist = _tile(start, parts, columns, channels, BLOCK_P)
        total += _rows_of(start, rows, chunk, BLOCK_P) * tl.load(means + places, mask=exist, other=0)
    center = tl.sum(total, 0) / rows
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        places, exist = _tile(start, parts, columns, channels, BLOCK_P)
        change = tl.load(means + places, mask=exist, other=0) - center[None, :]
        change *= change * _rows_of(start, rows, chunk, BLOCK_P)
        total += tl.load(squares + places, mask=exist, other=0) + tl.where(exist, change, 0.0)
    tl.store(mean + columns, center, mask=columns < channels)
    tl.store(inverse_std + columns, 1 / tl.sqrt_rn(tl.sum(total, 0) / rows + epsilon), mask=columns < channels)


@triton.jit
def _apply(
    x, addend, output, gamma, beta, mean, inverse_std, rows, channels,
    HAS_RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the output."""
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    places, exist = _tile(tl.program_id(0) * BLOCK_R, rows, columns, channels, BLOCK_R)
    kept = columns < channels
    values = _normalised(
        tl.load(x + places, mask=exist).to(tl.float32), tl.load(mean + columns, mask=kept),
        tl.load(inverse_std + columns, mask=kept), tl.load(gamma + columns, mask=kept),
        tl.load(beta + columns, mask=kept),
    )  # fmt: skip
    if addend is not None:
        values += tl.load(addend + places, mask=exist).to(tl.float32)
    if HAS_RELU:
        values = tl.where(values < 0, 0.0, values)  # which leaves what is no number, unlike tl.maximum
    tl.store(output + places, values.to(output.dtype.element_ty), mask=exist)


@triton.jit
def _passed(
    gradient, output, values, mean, inverse_std, gamma, beta, places, exist, x, HAS_RELU: tl.constexpr
):  # fmt: skip
    """Return the gradient that the ReLU lets through: where the output, saved or computed again, is positive.

    Outputs are compared as float32, because the interpreter of Triton 3.9 takes a negative bfloat16 for a large number.
    """
    passed = tl.load(gradient + places, mask=exist, other=0).to(tl.float32)
    if HAS_RELU:
        if output is not None:
            passed = tl.where(tl.load(output + places, mask=exist, other=0).to(tl.float32) <= 0, 0.0, passed)
        else:
            again = _normalised(values, mean, inverse_std, gamma, beta).to(x.dtype.element_ty)
            passed = tl.where(again.to(tl.float32) <= 0, 0.0, passed)
    return passed


@triton.jit
def _sum_gradients(
    gradient, x, output, of_addend, gamma, beta, mean, inverse_std, of_gamma, of_beta, rows, channels, chunk,
    HAS_RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the sums over a part of the rows, and the gradient of the addend where a ReLU changes it."""
    first = tl.program_id(0) * chunk
    end = tl.minimum(first + chunk, rows)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    kept = columns < channels
    center, scale = tl.load(mean + columns, mask=kept, other=0), tl.load(inverse_std + columns, mask=kept, other=0)
    factor, shift = tl.load(gamma + columns, mask=kept, other=0), tl.load(beta + columns, mask=kept, other=0)
    plain = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    weighted = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for start in range(first, end, BLOCK_R):
        places, exist = _tile(start, end, columns, channels, BLOCK_R)
        values = tl.load(x + places, mask=exist, other=0).to(tl.float32)
        passed = _passed(gradient, output, values, center, scale, factor, shift, places, exist, x, HAS_RELU)
        if of_addend is not None:
            tl.store(of_addend + places, passed.to(of_addend.dtype.element_ty), mask=exist)
        plain += passed
        weighted += passed * (values - center[None, :]) * scale[None, :]
    place = tl.program_id(0) * channels + columns
    tl.store(of_beta + place, tl.sum(plain, 0), mask=kept)
    tl.store(of_gamma + place, tl.sum(weighted, 0), mask=kept)


@triton.jit
def _join_gradients(
    parts_of_gamma, parts_of_beta, of_gamma, of_beta, channels, parts, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the gradients of gamma and beta, which are sums over all parts."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    weighted = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    plain = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, parts, BLOCK_P):
        places, exist = _tile(start, parts, columns, channels, BLOCK_P)
        weighted += tl.load(parts_of_gamma + places, mask=exist, other=0)
        plain += tl.load(parts_of_beta + places, mask=exist, other=0)
    tl.store(of_gamma + columns, tl.sum(weighted, 0), mask=columns < channels)
    tl.store(of_beta + columns, tl.sum(plain, 0), mask=columns < channels)


@triton.jit
def _apply_gradients(
    gradient, x, of_x, gamma, beta, mean, inverse_std, of_gamma, of_beta, rows, channels,
    HAS_RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the gradient of the input, given what the ReLU lets through, or computing that again from the input."""
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    places, exist = _tile(tl.program_id(0) * BLOCK_R, rows, columns, channels, BLOCK_R)
    kept = columns < channels
    center, scale = tl.load(mean + columns, mask=kept, other=0), tl.load(inverse_std + columns, mask=kept, other=0)
    factor, shift = tl.load(gamma + columns, mask=kept, other=0), tl.load(beta + columns, mask=kept, other=0)
    values = tl.load(x + places, mask=exist, other=0).to(tl.float32)
    passed = _passed(gradient, None, values, center, scale, factor, shift, places, exist, x, HAS_RELU)
    plain = tl.load(of_beta + columns, mask=kept, other=0) / rows
    weighted = tl.load(of_gamma + columns, mask=kept, other=0) / rows
    normalised = (values - center[None, :]) * scale[None, :]
    changed = (passed - plain[None, :] - normalised * weighted[None, :]) * (factor * scale)[None, :]
    tl.store(of_x + places, changed.to(of_x.dtype.element_ty), mask=exist)


class _Division:
    """How rows and columns are divided among programs; about `PROGRAMS` of them sum."""

    def __init__(self, x: Any) -> None:
        channels = x.shape[1]
        rows, columns = x.numel() // channels, min(_MOST_COLUMNS, triton.next_power_of_2(channels))
        tiles, strips = triton.cdiv(rows, _TILE // columns), triton.cdiv(channels, columns)
        chunk = triton.cdiv(tiles, max(1, PROGRAMS // strips)) * (_TILE // columns)
        parts = triton.cdiv(rows, chunk)
        self.matrix, self.chunks, self.parts = (rows, channels), (rows, channels, chunk), (rows, channels, parts, chunk)
        self.shape_of_parts = (2, parts, channels)
        self.per_part, self.per_tile = (parts, strips), (tiles, strips)
        self.per_channel = (triton.cdiv(channels, _FEW_COLUMNS),)
        self.tile = {"BLOCK_R": _TILE // columns, "BLOCK_C": columns, "num_warps": _WARPS}
        self.tile_of_parts = {"BLOCK_P": _PARTS, "BLOCK_C": _FEW_COLUMNS}


def _channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)


def forward(
    x: Tensor, gamma: Tensor, beta: Tensor, addend: Tensor | None, epsilon: float, has_relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `train.engine.torch.fused_norm.batch_norm`."""
    x, addend = _channels_last(x), None if addend is None else _channels_last(addend)
    divided = _Division(x)
    parts = torch.empty(divided.shape_of_parts, device=x.device)
    _sum_moments[divided.per_part](x, *parts, *divided.chunks, **divided.tile)
    mean, inverse_std = torch.empty_like(gamma), torch.empty_like(gamma)
    _join_moments[divided.per_channel](*parts, mean, inverse_std, *divided.parts, epsilon, **divided.tile_of_parts)
    output = torch.empty_like(x)
    _apply[divided.per_tile](
        x, addend, output, gamma, beta, mean, inverse_std, *divided.matrix, HAS_RELU=has_relu, **divided.tile
    )
    return output, mean, inverse_std


def backward(
    gradient: Tensor, x: Tensor, output: Tensor | None, gamma: Tensor, beta: Tensor, mean: Tensor, inverse_std: Tensor,
    has_relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of input, gamma, beta and, if ``output`` is given, addend; otherwise an empty tensor.

    ``output`` is what `forward` returned, if a ReLU followed an addition. Without an addition, it is computed again.
    """
    gradient, x = _channels_last(gradient), _channels_last(x)
    divided, norm = _Division(x), (gamma, beta, mean, inverse_std)
    of_addend = None if output is None else torch.empty_like(x)
    parts = torch.empty(divided.shape_of_parts, device=x.device)
    _sum_gradients[divided.per_part](
        gradient, x, output, of_addend, *norm, *parts, *divided.chunks, HAS_RELU=has_relu, **divided.tile
    )
    of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(beta)
    _join_gradients[divided.per_channel](*parts, of_gamma, of_beta, *divided.parts[1:3], **divided.tile_of_parts)
    of_x = torch.empty_like(x)
    # The gradient of the addend is what the ReLU lets through.
    passed, is_again = (gradient, has_relu) if of_addend is None else (of_addend, False)
    _apply_gradients[divided.per_tile](
        passed, x, of_x, *norm, of_gamma, of_beta, *divided.matrix, HAS_RELU=is_again, **divided.tile
    )
    return of_x, of_gamma, of_beta, x.new_empty(0) if of_addend is None else of_addend
