"""LARS and momentum SGD as Triton kernels: two passes over a network's weights, of which SGD needs the second only.

Tensors lie one after another in flat memory, and a table cuts them into chunks, each of one tensor; a program takes a
chunk. Sums over a tensor are made in two stages, of its chunks and then of these sums, both in a fixed order: a run
repeats its bits. Importing this module imports Triton, which comes with PyTorch for CUDA.
"""

import triton
import triton.language as tl
from torch import Tensor

from train.engine.torch.fused_momentum import CHUNK

_WARPS = 8
_FEW = 1024
"""Sums of chunks that a program reads at once."""


@triton.jit
def _chunk(chunks, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """Return this program's row of the table, the places of its numbers in flat memory, and which of them exist."""
    row = chunks + 4 * tl.program_id(0)
    start, size = tl.multiple_of(tl.load(row), VECTOR), tl.multiple_of(tl.load(row + 1), VECTOR)
    places = tl.arange(0, BLOCK)
    return row, start + places, places < size


@triton.jit
def _sum_squares(masters, gradients, chunks, sums, first, total, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """Store a chunk's sums: of squared weights, of squared gradients, and of gradients that are not finite."""
    _, places, exist = _chunk(chunks, VECTOR, BLOCK)
    weights = tl.load(masters + places, mask=exist, other=0)
    values = tl.load(gradients + places, mask=exist, other=0).to(tl.float32)
    sums += first + tl.program_id(0)
    tl.store(sums, tl.sum(weights * weights, 0))
    tl.store(sums + total, tl.sum(values * values, 0))
    tl.store(sums + 2 * total, tl.sum(tl.where(tl.abs(values) < float("inf"), 0.0, 1.0), 0))


@triton.jit
def _sum_of(sums, first, end, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, end, BLOCK):
        places = start + tl.arange(0, BLOCK)
        total += tl.load(sums + places, mask=places < end, other=0)
    return tl.sum(total, 0)


@triton.jit
def _momentum_rates(
    sums, tensors, numbers, factors, skipped, total, rescale, coefficient, epsilon, trust_decay,
    MAY_OVERFLOW: tl.constexpr, IS_DECOUPLED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store what a tensor's gradients and weights are multiplied by, and whether a gradient of any is not finite."""
    tensor, count = tl.program_id(0), tl.num_programs(0)
    row = tensors + 4 * tensor
    rate, decay = tl.load(numbers), tl.load(numbers + 2)
    decays = tl.load(row + 3).to(tl.float32)
    if coefficient is not None:  # noqa: SIM102 (this is known at compilation, the other is not)
        if tl.load(row + 2) > 0:
            first, end = tl.load(row), tl.load(row + 1)
            weights = tl.sqrt_rn(_sum_of(sums, first, end, BLOCK))
            means = tl.sqrt_rn(_sum_of(sums + total, first, end, BLOCK)) * rescale
            denominator = means + decays * (decay if trust_decay is None else trust_decay) * weights + epsilon
            rate = tl.where((weights > 0) & (means > 0), rate * (coefficient * weights / denominator), rate)
    tl.store(factors + tensor, rate * rescale)
    tl.store(factors + count + tensor, decays * (decay if IS_DECOUPLED else decay * rate))
    if tensor == 0:
        tl.store(skipped, (_sum_of(sums + 2 * total, 0, total, BLOCK) > 0).to(tl.float32) if MAY_OVERFLOW else 0.0)


@triton.jit
def _momentum_update(
    masters, velocities, copies, gradients, chunks, factors, numbers, skipped, count,
    IS_DECOUPLED: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store a chunk's velocities, its weights, and their copies of 16 bits, unless the step is skipped."""
    if tl.load(skipped) > 0:
        return
    row, places, exist = _chunk(chunks, VECTOR, BLOCK)
    tensor = tl.load(row + 2)
    master = tl.load(masters + places, mask=exist)
    velocity = tl.load(numbers + 1) * tl.load(velocities + places, mask=exist)
    velocity -= tl.load(factors + tensor) * tl.load(gradients + places, mask=exist).to(tl.float32)
    lost = tl.load(factors + count + tensor) * master
    if IS_DECOUPLED:
        master -= lost
    else:
        velocity -= lost
    master += velocity
    tl.store(velocities + places, velocity, mask=exist)
    tl.store(masters + places, master, mask=exist)
    if copies is not None:
        begin = tl.multiple_of(tl.load(row + 3), VECTOR)
        offsets = tl.arange(0, BLOCK)
        is_copied = exist & (tl.zeros_like(offsets) + begin >= 0)  # no scalar: Triton 3.9 interprets no mask made of it
        tl.store(copies + begin + offsets, master.to(copies.dtype.element_ty), mask=is_copied)


def square_sums(masters: Tensor, gradients: Tensor, chunks: Tensor, vector: int, first: int, sums: Tensor) -> None:
    """Write the sums of a piece's chunks; see `train.engine.torch.fused_momentum`."""
    settings = {"VECTOR": vector, "BLOCK": CHUNK, "num_warps": _WARPS}
    _sum_squares[(len(chunks),)](masters, gradients, chunks, sums, first, sums.shape[1], **settings)


def momentum_rates(
    sums: Tensor, tensors: Tensor, numbers: Tensor, *trust: float | None, may_overflow: bool, is_decoupled: bool
) -> tuple[Tensor, Tensor]:
    """Return the factors of gradients and of weights, shape (2, tensors), and 1 if the step is to be skipped, else 0.

    ``trust`` is the factor from sums to means, trust coefficient, epsilon and decay, as the kernel takes them.
    """
    factors, skipped = numbers.new_empty(2, len(tensors)), numbers.new_empty(1)
    _momentum_rates[(len(tensors),)](
        sums, tensors, numbers, factors, skipped, sums.shape[1], *trust,
        MAY_OVERFLOW=may_overflow, IS_DECOUPLED=is_decoupled, BLOCK=_FEW,
    )  # fmt: skip
    return factors, skipped


def momentum_update(
    masters: Tensor, velocities: Tensor, copies: Tensor | None, gradients: Tensor, chunks: Tensor, vector: int,
    factors: Tensor, numbers: Tensor, skipped: Tensor, is_decoupled: bool,
) -> None:  # fmt: skip
    """Update a piece."""
    _momentum_update[(len(chunks),)](
        masters, velocities, copies, gradients, chunks, factors, numbers, skipped, factors.shape[1],
        IS_DECOUPLED=is_decoupled, VECTOR=vector, BLOCK=CHUNK, num_warps=_WARPS,
    )  # fmt: skip
