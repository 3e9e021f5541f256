"""Adam on PyTorch's multi-tensor operators; nothing is read back to the host.

*Source*: Kingma and Ba, arXiv:1412.6980, algorithm 1: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
w = w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) in step t = 1, 2, ..., with g the gradient plus wd w.
With c = sqrt(1-b2^t), the last line is w - (lr c / (1-b1^t)) m / (sqrt(v) + epsilon c). t is the step of the schedule,
so no counter has to be saved.
"""

import math

import torch

from configs.optimizers import Adam, HyperParameters
from train.engine.protocol import Trainee
from train.engine.torch.lars import copy_masters


class AdamOptimizer:
    """Update weights in place from summed gradients; arguments as for `train.engine.torch.lars.MomentumOptimizer`.

    Attributes:
        momenta: The first moment of every tensor, then the second moment of every tensor, float32.
    """

    def __init__(self, config: Adam, network: Trainee, *, rescale: float) -> None:
        self.config = config
        self._rescale, self._network = rescale, network
        self.momenta = [torch.zeros_like(master) for _ in range(2) for master in network.masters]
        self._decayed = [
            index
            for index, parameter in enumerate(network.parameters)
            if parameter.kind not in config.skip_weight_decay
        ]

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""
        masters = list(self._network.masters)
        beta_1, beta_2, time = hyper.momentum, self.config.beta_2, hyper.step + 1
        correction = math.sqrt(1 - beta_2**time)
        firsts, seconds = self.momenta[: len(masters)], self.momenta[len(masters) :]
        gradients = torch._foreach_mul([each.float() for each in self._network.gradients], self._rescale)
        if hyper.weight_decay and self._decayed:
            torch._foreach_add_(
                [gradients[index] for index in self._decayed],
                [masters[index] for index in self._decayed],
                alpha=hyper.weight_decay,
            )
        torch._foreach_lerp_(firsts, gradients, 1 - beta_1)
        torch._foreach_mul_(seconds, beta_2)
        torch._foreach_addcmul_(seconds, gradients, gradients, value=1 - beta_2)
        roots = torch._foreach_sqrt(seconds)
        torch._foreach_add_(roots, self.config.epsilon * correction)
        torch._foreach_addcdiv_(masters, firsts, roots, value=-hyper.lr * correction / (1 - beta_1**time))
        copy_masters(self._network.weights, masters)

    def reset(self) -> None:
        """Set the moments to 0, as before the first step."""
        torch._foreach_zero_(self.momenta)
