"""Adam on MXNet's fused operator, one call per tensor; nothing is read back to the host.

*Source*: Kingma and Ba, arXiv:1412.6980, algorithm 1: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
w = w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) in step t = 1, 2, ..., with g the gradient plus wd w.
The operator does not correct the bias of the moments. With c = sqrt(1-b2^t), the rate lr c / (1-b1^t) and epsilon c
give the same result. t is the step of the schedule, so no counter has to be saved.
"""

import math
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from configs.schema import Adam
from train.networks.arch import Parameter
from train.schedule import HyperParameters


class AdamOptimizer:
    """Update weights in place from summed gradients; arguments as for `train.engine.mxnet.lars.MomentumOptimizer`.

    Attributes:
        momenta: The first moment of every tensor, then the second moment of every tensor, float32.
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
        """Queue the update of one step."""
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
        """Set the moments to 0, as before the first step."""
        mx.nd.reset_arrays(*self.momenta, num_arrays=len(self.momenta))
