"""LARS and momentum SGD on PyTorch's multi-tensor operators; nothing is read back to the host.

*Source*: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6, with the trust ratio
T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v. T is 1 where a norm is 0.

Weights of 16 bits have float32 masters: norms, momentum and update use the masters, and each weight is a copy of its
master.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from configs.optimizers import HyperParameters, Lars, Sgd
from train.engine.protocol import Trainee


@dataclass(frozen=True)
class _Group:
    """Tensors with the same treatment: a trust ratio or none, weight decay or none."""

    has_trust_ratio: bool
    decays: bool
    masters: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    momenta: list[Any] = field(default_factory=list)


class MomentumOptimizer:
    """Update weights in place from summed gradients.

    Args:
        config: ``Lars`` or ``Sgd`` block of the recipe.
        network: The network; its gradients are sums over the global batch, in the type of the weights or in float32.
        rescale: Factor from sums to means, 1 / global batch size.
    """

    def __init__(self, config: Lars | Sgd, network: Trainee, *, rescale: float) -> None:
        self.config = config
        self._rescale, self._network = rescale, network
        self.momenta = [torch.zeros_like(master) for master in network.masters]
        trusted = set() if isinstance(config, Sgd) else {"weight", "gamma", "beta", "bias"} - {*config.skip_trust_ratio}
        groups: dict[tuple[bool, bool], _Group] = {}
        columns = (network.parameters, network.masters, network.gradients, self.momenta)
        for parameter, master, gradient, momentum in zip(*columns, strict=True):
            key = parameter.kind in trusted, parameter.kind not in config.skip_weight_decay
            group = groups.setdefault(key, _Group(*key))
            group.masters.append(master)
            group.gradients.append(gradient)
            group.momenta.append(momentum)
        self._groups = list(groups.values())

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""
        for group in self._groups:
            torch._foreach_mul_(group.momenta, hyper.momentum)
            decay = hyper.weight_decay if group.decays else 0.0
            if group.has_trust_ratio:
                rates = self._trusted(group, hyper, decay)
                _add_products(group.momenta, group.gradients, rates * -self._rescale)
                if decay:
                    _add_products(group.momenta, group.masters, rates * -decay)
            else:
                torch._foreach_add_(group.momenta, group.gradients, alpha=-hyper.lr * self._rescale)
                if decay:
                    torch._foreach_add_(group.momenta, group.masters, alpha=-hyper.lr * decay)
            torch._foreach_add_(group.masters, group.momenta)
        copy_masters(self._network.weights, self._network.masters)

    def _trusted(self, group: _Group, hyper: HyperParameters, decay: float) -> Any:
        """Return each tensor's learning rate times its trust ratio, as a vector on the device."""
        config = self.config
        assert isinstance(config, Lars)
        if group.decays and config.trust_weight_decay is not None:
            decay = config.trust_weight_decay
        weights = torch.stack(torch._foreach_norm(group.masters))
        gradients = torch.stack(torch._foreach_norm(group.gradients, dtype=torch.float32)) * self._rescale
        ratios = config.trust_coefficient * weights / (gradients + decay * weights + config.epsilon)
        return hyper.lr * torch.where((weights > 0) & (gradients > 0), ratios, 1.0)

    def reset(self) -> None:
        """Set the momentum to 0, as before the first step."""
        torch._foreach_zero_(self.momenta)


def copy_masters(weights: Sequence[Any], masters: Sequence[Any]) -> None:
    """Queue the copies of masters into the weights of 16 bits."""
    pairs = [(weight, master) for weight, master in zip(weights, masters, strict=True) if weight is not master]
    if pairs:
        halves, wholes = zip(*pairs, strict=True)
        torch._foreach_copy_(halves, wholes)


def _add_products(sums: list[Any], arrays: list[Any], factors: Any) -> None:
    """Add to each tensor of ``sums`` its partner of ``arrays`` times its own element of ``factors``."""
    torch._foreach_addcmul_(sums, arrays, list(factors.unbind()))
