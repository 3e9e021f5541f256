"""Distributed Shampoo: keys, log entries and the shapes of the preconditioners. PyTorch's engine has the update."""

import math
from collections.abc import Sequence
from itertools import product
from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import OptimizerBlock


class Shampoo(OptimizerBlock):
    """Shampoo in blocks, grafted to SGD (Anil and others, arXiv:2002.09018), as in Google's open run of MLPerf v1.0.

    A tensor with k axes (`axes`) is cut into blocks. Axis i of a block has a statistic L_i = beta_2 L_i + (1 - beta_2)
    G_i G_i', where G_i is the mean gradient as a matrix with axis i as rows, and at first L_i = epsilon I. The gradient
    is multiplied along every axis by (L_i + epsilon I)^(-1 / p), where p is 2k unless ``root_power`` is set, and then
    the whole tensor is scaled to the norm of the gradient. This step s has weight decay and Nesterov's momentum:
    u = s + wd w, v = m v + u, w = w - lr (u + m v). The first steps take the gradient in place of s, with a momentum of
    their own.
    """

    num_moments: ClassVar[int] = 2
    part: ClassVar[str] = "train.engine.torch.shampoo.ShampooOptimizer"
    engines: ClassVar[Sequence[str]] = ("torch",)
    is_shared: ClassVar[bool] = True
    momentum_log_key: ClassVar[str] = "opt_shampoo_beta_1"

    name: Literal["shampoo"]
    """Chooses Shampoo, under PyTorch; ranks divide the roots of the statistics among themselves."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum: beta_1 of the code; 0 keeps nothing."""
    beta_2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the statistics' running mean."""
    matrix_epsilon: float = Field(1e-6, gt=0, lt=1)
    """Added to the statistics' diagonal before their root; also their first value."""
    weight_decay: float = Field(ge=0, lt=1)
    """Factor of the weight that is added to the preconditioned gradient; 0: none."""
    root_power: int | None = Field(None, ge=1, le=16)
    """Power p of the inverse root (L + epsilon I)^(-1 / p) of a statistic. If null, twice the number of the tensor's
    axes."""
    block_size: int = Field(128, ge=2, le=8192)
    """Longest side of a block. A root takes a time that grows with the cube of the side."""
    start_preconditioning_step: int = Field(1, ge=0)
    """First step, counted from 0, that takes the preconditioned gradient."""
    root_every_steps: int = Field(1, ge=1)
    """Steps between two computations of the roots. Larger values save time."""

    def logged(self) -> dict[str, float]:
        """Return the keys of the statistics and their roots; beta_1 is logged as the momentum."""
        keys = (
            "beta_2",
            "matrix_epsilon",
            "block_size",
            "root_power",
            "start_preconditioning_step",
            "root_every_steps",
        )
        values = {f"opt_shampoo_{key}": getattr(self, key) for key in keys}
        return {key: value for key, value in values.items() if value is not None}

    def axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of a tensor as they are preconditioned: neighbours are merged up to ``block_size``.

        The order is that of the source's kernels, HWIO: a filter of 3x3, 64 to 128 channels, has the axes 9, 64, 128.

        Args:
            shape: In OIHW, or [outputs, inputs], or of a vector.
        """
        merged: list[int] = []
        last = 1
        for side in (*shape[2:], *reversed(shape[:2])):
            if last * side > self.block_size and last > 1:
                merged.append(last)
                last = 1
            last *= side
        return (*merged, last) if last > 1 or not merged else tuple(merged)

    def blocks(self, axes: Sequence[int]) -> list[tuple[slice, ...]]:
        """Return the blocks of a tensor, as places along its ``axes``."""
        size = self.block_size
        return list(product(*([slice(at, min(at + size, side)) for at in range(0, side, size)] for side in axes)))

    def held_numbers(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return those of the two momenta, and of each block's statistics and roots."""
        blocks = (block for shape in shapes for block in self.blocks(self.axes(shape)))
        squares: int = sum((part.stop - part.start) ** 2 for block in blocks for part in block)
        return super().held_numbers(shapes) + 2 * squares

    def update_numbers(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return those of mean gradients, their blocks, and preconditioned gradients before and after scaling."""
        return 4 * sum(map(math.prod, shapes))
