"""The update of LARS and momentum SGD as a Triton kernel.

Tensors lie one after another in flat memory, and a table cuts them into chunks, each of one tensor; a program takes a
chunk. Importing this module imports Triton, which comes with PyTorch for CUDA.
"""

import triton
import triton.language as tl
from torch import Tensor

from train.engine.torch.fused_momentum import CHUNK

_WARPS = 8


@triton.jit
def _momentum_update(
    masters, velocities, copies, gradients, chunks, rates, decays, numbers, rescale,
    IS_DECOUPLED: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store a chunk's velocities, its weights, and their copies of 16 bits."""
    row = chunks + 4 * tl.program_id(0)
    start, size = tl.multiple_of(tl.load(row), VECTOR), tl.multiple_of(tl.load(row + 1), VECTOR)
    offsets = tl.arange(0, BLOCK)
    places, exist = start + offsets, offsets < size
    tensor = tl.load(row + 2)
    master = tl.load(masters + places, mask=exist)
    velocity = tl.load(numbers + 1) * tl.load(velocities + places, mask=exist)
    velocity -= tl.load(rates + tensor) * rescale * tl.load(gradients + places, mask=exist).to(tl.float32)
    lost = tl.load(decays + tensor) * master
    if IS_DECOUPLED:
        master -= lost
    else:
        velocity -= lost
    master += tl.load(numbers + 3) * velocity
    tl.store(velocities + places, velocity, mask=exist)
    tl.store(masters + places, master, mask=exist)
    if copies is not None:
        begin = tl.multiple_of(tl.load(row + 3), VECTOR)
        is_copied = exist & (tl.zeros_like(offsets) + begin >= 0)  # no scalar: Triton 3.9 interprets no mask made of it
        tl.store(copies + begin + offsets, master.to(copies.dtype.element_ty), mask=is_copied)


def momentum_update(
    masters: Tensor, velocities: Tensor, copies: Tensor | None, gradients: Tensor, chunks: Tensor, vector: int,
    rates: Tensor, decays: Tensor, numbers: Tensor, rescale: float, is_decoupled: bool,
) -> None:  # fmt: skip
    """Update a piece; see `train.engine.torch.fused_momentum`."""
    _momentum_update[(len(chunks),)](
        masters, velocities, copies, gradients, chunks, rates, decays, numbers, rescale,
        IS_DECOUPLED=is_decoupled, VECTOR=vector, BLOCK=CHUNK, num_warps=_WARPS,
    )  # fmt: skip
