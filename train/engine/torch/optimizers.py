"""LARS, momentum SGD and Adam on PyTorch's multi-tensor operators; nothing is read back to the host.

*Source* of LARS: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6, with the trust ratio
T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v. T is 1 where a norm is 0.

Weights of 16 bits have float32 masters: norms, momentum and update use the masters, and each weight is a copy of its
master.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from configs.optimizers import Adam, HyperParameters, Lars, Sgd
from train.engine.protocol import TrainableNetwork

_BLOCK_SIZE = 1 << 17
"""Elements of a block of a norm on a CPU."""


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

    def __init__(self, config: Lars | Sgd, network: TrainableNetwork, *, rescale: float) -> None:
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
        _copy_masters(self._network.weights, self._network.masters)

    def _trusted(self, group: _Group, hyper: HyperParameters, decay: float) -> Any:
        """Return each tensor's learning rate times its trust ratio, as a vector on the device."""
        config = self.config
        assert isinstance(config, Lars)
        if group.decays and config.trust_weight_decay is not None:
            decay = config.trust_weight_decay
        weights = _norms(group.masters)
        gradients = _norms(group.gradients) * self._rescale
        ratios = config.trust_coefficient * weights / (gradients + decay * weights + config.epsilon)
        return hyper.lr * torch.where((weights > 0) & (gradients > 0), ratios, 1.0)

    def reset(self) -> None:
        """Set the momentum to 0, as before the first step."""
        torch._foreach_zero_(self.momenta)


def _norms(tensors: Sequence[Any]) -> Any:
    """Return the L2 norm of each tensor, float32, as a vector on the device.

    On a CPU, PyTorch adds squares one after another in float32: 38 M weights of AlexNet are 2.3e-3 off. So a tensor is
    cut into blocks, and the norm is that of the blocks' norms: 1e-6 off, for 2 ms more in a step of ResNet-50; norms in
    float64 take 160 ms more (PyTorch 2.13, one core, 2026-11).
    """
    blocks = [_blocks(tensor) for tensor in tensors]
    norms = torch._foreach_norm([block for own in blocks for block in own], dtype=torch.float32)
    if len(norms) > len(tensors):
        norms = torch._foreach_norm(torch.stack(norms).split([len(own) for own in blocks]))
    return torch.stack(norms)


def _blocks(tensor: Any) -> Sequence[Any]:
    """Return views of a large tensor on a CPU, cut along its first axis; any other tensor as it is."""
    if tensor.is_cuda or tensor.numel() <= _BLOCK_SIZE:
        return [tensor]
    return tensor.split(max(1, _BLOCK_SIZE * len(tensor) // tensor.numel()))  # type: ignore[no-any-return]


class AdamOptimizer:
    """Update weights in place from summed gradients; arguments as for `MomentumOptimizer`.

    *Source*: Kingma and Ba, arXiv:1412.6980, algorithm 1: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
    w = w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) in step t = 1, 2, ..., with g the gradient plus wd w.
    With c = sqrt(1-b2^t), the last line is w - (lr c / (1-b1^t)) m / (sqrt(v) + epsilon c). t is the step of the
    schedule, so no counter has to be saved.

    Attributes:
        momenta: The first moment of every tensor, then the second moment of every tensor, float32.
    """

    def __init__(self, config: Adam, network: TrainableNetwork, *, rescale: float) -> None:
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
        _copy_masters(self._network.weights, masters)

    def reset(self) -> None:
        """Set the moments to 0, as before the first step."""
        torch._foreach_zero_(self.momenta)


def _copy_masters(weights: Sequence[Any], masters: Sequence[Any]) -> None:
    """Queue the copies of masters into the weights of 16 bits."""
    pairs = [(weight, master) for weight, master in zip(weights, masters, strict=True) if weight is not master]
    if pairs:
        halves, wholes = zip(*pairs, strict=True)
        torch._foreach_copy_(halves, wholes)


def _add_products(sums: list[Any], arrays: list[Any], factors: Any) -> None:
    """Add to each tensor of ``sums`` its partner of ``arrays`` times its own element of ``factors``."""
    torch._foreach_addcmul_(sums, arrays, list(factors.unbind()))
