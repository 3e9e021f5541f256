"""Adam on MXNet's fused operator, one call a tensor, without one read back to the host.

*Source*: Kingma and Ba, arXiv:1412.6980, algorithm 1: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
w = w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) in step t = 1, 2, ..., with g the gradient plus wd w.
The operator corrects no bias: with c = sqrt(1-b2^t), it is given the rate lr c / (1-b1^t) and epsilon c, which is the
same. t is the step of the schedule, so there is no counter to save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from configs.schema import Adam
from train.networks.arch import Parameter
from train.schedule import HyperParameters

__all__ = ["AdamOptimizer"]


class AdamOptimizer:
    """Update weights in place from summed gradients; arguments as for `train.engine.mxnet.lars.MomentumOptimizer`.

    Attributes:
        momenta: Its state: the first moment of every tensor, then the second of every tensor, float32.
    """

    def __init__(
        self, config: Adam, parameters: Sequence[Parameter], *,
        weights: Sequence[Any], gradients: Sequence[Any], rescale: float, masters: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self._rescale = rescale
        masters = weights if masters is None else masters
        self.momenta = [mx.nd.zeros_like(master) for _ in range(2) for master in masters]
        firsts, seconds = self.momenta[: len(masters)], self.momenta[len(masters) :]
        decays = [each.kind not in config.skip_weight_decay for each in parameters]
        self._tensors = list(zip(weights, masters, gradients, firsts, seconds, decays, strict=True))

    def update(self, hyper: HyperParameters) -> None:
        """Apply one step; queues operators and returns at once."""
        beta_1, beta_2, time = hyper.momentum, self.config.beta_2, hyper.step + 1
        correction = math.sqrt(1 - beta_2**time)
        lr = hyper.lr * correction / (1 - beta_1**time)
        for weight, master, gradient, first, second, decays in self._tensors:
            mx.nd.adam_update(
                master, gradient.astype("float32", copy=False), first, second, out=master,
                lr=lr, beta1=beta_1, beta2=beta_2, epsilon=self.config.epsilon * correction,
                wd=hyper.weight_decay if decays else 0.0, rescale_grad=self._rescale,
            )  # fmt: skip
            if weight is not master:
                master.copyto(weight)

    def reset(self) -> None:
        """Forget the moments, as before the first step."""
        mx.nd.reset_arrays(*self.momenta, num_arrays=len(self.momenta))
