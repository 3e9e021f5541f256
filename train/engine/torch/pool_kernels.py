"""Max pooling as Triton kernels: one launch forward, which keeps each maximum's place in its window, and one backward.

Activations lie in NHWC. Importing this module imports Triton, which comes with PyTorch for CUDA.
"""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from train.engine.torch.fused_pool import LAYOUT, empty_input, empty_output

_TILE = 2048
"""Numbers of a tile, 8 for each thread."""
_MOST_COLUMNS = 64
_WARPS = 8


@triton.jit
def _pixels(count, width, height, BLOCK_R: tl.constexpr):
    """Return the numbers of a tile's pixels, which of them exist, and their image, row and column."""
    pixels = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    return pixels.to(tl.int64), pixels < count, pixels // (width * height), pixels // width % height, pixels % width


@triton.jit
def _max_pool(
    x, output, places, count, channels, height, width, out_height, out_width,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the maximum of each window, and its place there: of equal ones the first, of what is no number the last."""
    pixels, exist, image, row, column = _pixels(count, out_width, out_height, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    kept = columns < channels
    best = tl.full([BLOCK_R, BLOCK_C], float("-inf"), tl.float32)
    found = tl.full([BLOCK_R, BLOCK_C], KERNEL * KERNEL, tl.int32)
    for place in tl.static_range(KERNEL * KERNEL):
        y, x_ = row * STRIDE - PADDING + place // KERNEL, column * STRIDE - PADDING + place % KERNEL
        is_inside = exist & (y >= 0) & (y < height) & (x_ >= 0) & (x_ < width)
        read = is_inside[:, None] & kept[None, :]
        source = ((image * height + y).to(tl.int64) * width + x_)[:, None] * channels + columns[None, :]
        values = tl.load(x + source, mask=read, other=float("-inf")).to(tl.float32)
        # What is no number differs from itself.
        is_better = read & ((values > best) | (values != values) | (found == KERNEL * KERNEL))  # noqa: PLR0124
        best, found = tl.where(is_better, values, best), tl.where(is_better, place, found)
    target, are_kept = pixels[:, None] * channels + columns[None, :], exist[:, None] & kept[None, :]
    tl.store(output + target, best.to(output.dtype.element_ty), mask=are_kept)
    tl.store(places + target, found.to(tl.uint8), mask=are_kept)


@triton.jit
def _max_pool_gradient(
    gradient, places, of_x, count, channels, height, width, out_height, out_width,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store the sum of the gradients of those windows whose maximum a pixel is."""
    pixels, exist, image, row, column = _pixels(count, width, height, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    kept = columns < channels
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    WINDOWS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    for number in tl.static_range(WINDOWS * WINDOWS):
        # The last window that has the pixel, and those before it.
        y, x_ = (row + PADDING) // STRIDE - number // WINDOWS, (column + PADDING) // STRIDE - number % WINDOWS
        down, right = row + PADDING - y * STRIDE, column + PADDING - x_ * STRIDE
        has = exist & (y >= 0) & (y < out_height) & (x_ >= 0) & (x_ < out_width) & (down < KERNEL) & (right < KERNEL)
        read = has[:, None] & kept[None, :]
        source = ((image * out_height + y).to(tl.int64) * out_width + x_)[:, None] * channels + columns[None, :]
        is_maximum = tl.load(places + source, mask=read, other=255).to(tl.int32) == (down * KERNEL + right)[:, None]
        total += tl.where(is_maximum, tl.load(gradient + source, mask=read, other=0).to(tl.float32), 0.0)
    target = pixels[:, None] * channels + columns[None, :]
    tl.store(of_x + target, total.to(of_x.dtype.element_ty), mask=exist[:, None] & kept[None, :])


def _launch(kernel: Any, made: Tensor, *tensors: Tensor, sides: Sequence[int], window: Sequence[int]) -> None:
    """Launch a kernel with a program for each tile of ``made``."""
    images, channels, height, width = made.shape
    count, columns = images * height * width, min(_MOST_COLUMNS, triton.next_power_of_2(channels))
    grid = triton.cdiv(count, _TILE // columns), triton.cdiv(channels, columns)
    kernel[grid](
        *tensors, count, channels, *sides, *window, BLOCK_R=_TILE // columns, BLOCK_C=columns, num_warps=_WARPS
    )  # fmt: skip


def forward(x: Tensor, *window: int) -> tuple[Tensor, Tensor]:
    """See `train.engine.torch.fused_pool.max_pool`."""
    x = x.contiguous(memory_format=LAYOUT)
    output, places = empty_output(x, *window)
    _launch(_max_pool, output, x, output, places, sides=(*x.shape[2:], *output.shape[2:]), window=window)
    return output, places


def backward(gradient: Tensor, places: Tensor, height: int, width: int, *window: int) -> Tensor:
    """Return the gradient of the input, whose sides are given."""
    gradient = gradient.contiguous(memory_format=LAYOUT)
    of_x = empty_input(gradient, places, height, width)
    sides = height, width, *gradient.shape[2:]
    _launch(_max_pool_gradient, of_x, gradient, places, of_x, sides=sides, window=window)
    return of_x
