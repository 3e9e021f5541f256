"""Batch norm whose statistics several ranks compute together (`RunPlan.norm_ranks`), over torch.distributed.

Each rank sends means, variances and two sums of the backward pass, and no activation. All arithmetic is in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.nn import functional

_IMAGES_AND_PIXELS = (0, 2, 3)

_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # before PyTorch 2.13


class SharedStatistics:
    """The ranks that compute the statistics of every batch norm together: ``size`` neighbours, this rank among them.

    The connections are made at the first use, when torch.distributed is up. Every rank of the run must use it at the
    same time, because NCCL divides the run's ranks into all such groups at once.

    Args:
        size: Number of ranks; it divides the number of all ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._group: Any = None

    def combined(self, parts: Sequence[Any]) -> list[Any]:
        """Return the arrays of every rank, by rank: for each of ``parts``, shape [C], an array of shape [ranks, C]."""
        if self._group is None:
            first = distributed.get_rank() // self._size * self._size
            members = list(range(first, first + self._size))
            self._group = distributed.new_group(members, use_local_synchronization=True)
        own = torch.cat(list(parts))
        gathered = own.new_empty(self._size * len(own))
        _gather(gathered, own, group=self._group)
        return list(gathered.view(self._size, -1).split([len(part) for part in parts], dim=1))


class _SharedNorm(torch.autograd.Function):  # type: ignore[misc]
    """*Source*: Ioffe and Szegedy, arXiv:1502.03167, section 3, with sums over the images of several ranks."""

    @staticmethod
    def forward(ctx: Any, values: Any, gamma: Any, beta: Any, epsilon: float, shared: SharedStatistics) -> Any:
        variance, mean = torch.var_mean(values.float(), dim=_IMAGES_AND_PIXELS, correction=0)
        means, variances = shared.combined([mean, variance])
        # Of equally many numbers each: variance within the ranks, and that of the ranks' means.
        variance, mean = torch.var_mean(means, dim=0, correction=0)
        variance += variances.mean(dim=0)
        inverse_std = (variance + epsilon).rsqrt()
        normalised = functional.batch_norm(values, mean, variance, gamma, beta, training=False, eps=epsilon)
        ctx.save_for_backward(values, gamma, mean, inverse_std)
        ctx.shared = shared
        ctx.mark_non_differentiable(mean, inverse_std)
        return normalised, mean, inverse_std

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_unused: Any) -> Any:
        values, gamma, mean, inverse_std = ctx.saved_tensors
        shape = (1, -1, 1, 1)
        arriving = gradient.float()
        deviations = (values.float() - mean.view(shape)) * inverse_std.view(shape)
        sums = arriving.sum(dim=_IMAGES_AND_PIXELS), (arriving * deviations).sum(dim=_IMAGES_AND_PIXELS)
        numbers = values.numel() / values.shape[1]
        # The gradients of gamma and beta stay those of this rank's images: all ranks' are summed with the others.
        of_values, of_deviations = (each.mean(dim=0).div(numbers).view(shape) for each in ctx.shared.combined(sums))
        result = (arriving - of_values - deviations * of_deviations) * (gamma * inverse_std).view(shape)
        return result.to(values.dtype), sums[1], sums[0], None, None


shared_norm = _SharedNorm.apply
"""Takes activations of shape [N, C, H, W], gamma, beta, epsilon and `SharedStatistics`, of ranks with N images each.
Returns the activations in their type, and mean and inverse standard deviation of the batch, float32 of shape [C],
through which no gradient flows."""
