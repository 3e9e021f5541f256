"""LARS and momentum SGD on MXNet's fused multi-tensor operators, without one read back to the host.

The stock ``mx.optimizer.LARS`` waits for norms on the host, forgets its skip list under ``gluon.Trainer`` and corrects
the momentum of only the first aggregated chunk (measured against `tests/oracles.py`); none of that is here.

*Source*: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6, with the trust ratio
T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v. T is 1 where a norm is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mxnet as mx

from configs.schema import Lars, Sgd
from train.arch import Parameter
from train.schedule import HyperParameters

__all__ = ["MomentumOptimizer"]

_OPERATOR_LIMIT = 60
"""Tensors that one fused operator takes (MXNet 1.9.1, multi_sgd: at most 60)."""


@dataclass(frozen=True)
class _Chunk:
    """Tensors updated by one operator call; all of them with a trust ratio, or none."""

    weights: list[Any]
    gradients: list[Any]
    momenta: list[Any]
    decay_mask: Any
    has_trust_ratio: bool


class MomentumOptimizer:
    """Update weights in place from summed gradients.

    Args:
        config: ``Lars`` or ``Sgd`` block of the recipe.
        parameters: What each tensor is, in the order of the two lists.
        weights: Float32 arrays, updated in place.
        gradients: Sums over the global batch, in the same order.
        rescale: Factor from sums to means, 1 / global batch size.
    """

    def __init__(
        self, config: Lars | Sgd, parameters: Sequence[Parameter], *,
        weights: Sequence[Any], gradients: Sequence[Any], rescale: float,
    ) -> None:  # fmt: skip
        self.config = config
        self._rescale = rescale
        self._momenta = [mx.nd.zeros_like(weight) for weight in weights]
        tensors = list(zip(parameters, weights, gradients, self._momenta, strict=True))
        skips = config.skip_trust_ratio if isinstance(config, Lars) else ("weight", "gamma", "beta", "bias")
        with_ratio = [each for each in tensors if each[0].kind not in skips]
        without = [each for each in tensors if each[0].kind in skips]
        self._chunks = [*self._chunked(with_ratio, True), *self._chunked(without, False)]

    def _chunked(self, tensors: Sequence[tuple[Parameter, Any, Any, Any]], has_trust_ratio: bool) -> list[_Chunk]:
        chunks = []
        for start in range(0, len(tensors), _OPERATOR_LIMIT):
            part = tensors[start : start + _OPERATOR_LIMIT]
            mask = [float(each[0].kind not in self.config.skip_weight_decay) for each in part]
            weights, gradients, momenta = ([each[place] for each in part] for place in (1, 2, 3))
            decay_mask = mx.nd.array(mask, ctx=weights[0].context)
            chunks.append(_Chunk(weights, gradients, momenta, decay_mask, has_trust_ratio))
        return chunks

    def update(self, hyper: HyperParameters) -> None:
        """Apply one step; queues operators and returns at once."""
        for chunk in self._chunks:
            rates = mx.nd.full((len(chunk.weights),), hyper.lr, ctx=chunk.decay_mask.context)
            if chunk.has_trust_ratio:
                rates = self._trusted(chunk, rates, hyper.weight_decay)
            tensors = zip(chunk.weights, chunk.gradients, chunk.momenta, strict=True)
            mx.nd.preloaded_multi_sgd_mom_update(
                *[array for each in tensors for array in each], rates, chunk.decay_mask * hyper.weight_decay,
                out=chunk.weights, num_weights=len(chunk.weights),
                momentum=hyper.momentum, rescale_grad=self._rescale,
            )  # fmt: skip

    def _trusted(self, chunk: _Chunk, rates: Any, weight_decay: float) -> Any:
        """Scale each tensor's rate by its trust ratio."""
        assert isinstance(self.config, Lars)
        own = self.config.trust_weight_decay
        return mx.nd.multi_lars(
            rates,
            mx.nd.multi_sum_sq(*chunk.weights, num_arrays=len(chunk.weights)),
            mx.nd.multi_sum_sq(*chunk.gradients, num_arrays=len(chunk.gradients)),
            chunk.decay_mask * (weight_decay if own is None else own),
            eta=self.config.trust_coefficient, eps=self.config.epsilon, rescale_grad=self._rescale,
        )  # fmt: skip

    def reset(self) -> None:
        """Forget the momentum, as before the first step."""
        mx.nd.reset_arrays(*self._momenta, num_arrays=len(self._momenta))
