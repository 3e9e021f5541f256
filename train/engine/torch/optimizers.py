"""LARS, momentum SGD and Adam on flat memory; nothing is read back to the host.

`train.engine.formulas` has the source of LARS.

An update reads the numbers of its step, such as the learning rate, from the device. A CUDA graph of an update can
therefore be replayed in every step.

In float16, sums of gradients may overflow. All ranks have the same sums, so each of them finds out by itself, on the
device, and all of them skip the update of such a step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from configs.optimizers import HyperParameters
from train.comm.buckets import plan_buckets
from train.comm.neighbours import are_neighbours, flattened, like
from train.engine.formulas import corrected_adam
from train.engine.torch.host_update import host_update
from train.ideas.update_rule import RuleOptimizer

_BLOCK_SIZE = 1 << 17
"""Elements of a block on a CPU, of a norm and of an update.

The cache holds a block from one operator of an update to the next: an update of ResNet-50 by SGD takes 20 ms with
blocks, and 28 ms without (PyTorch 2.13, one core of an AMD EPYC, 2026-11).
"""


@dataclass(frozen=True)
class _Piece:
    """Neighbouring tensors that are updated by one launch an operator, or a block of a large tensor.

    Attributes:
        masters: Their weights in float32, as one tensor of one axis, like ``gradients`` and each of ``moments``.
        gradients: Their gradients, of one type.
        moments: The state of the optimizer, float32.
        rates: Views of the tensors' learning rates: one number for all elements, or for each tensor its number,
            expanded to the elements of the tensor.
        decays: Views of what their weights are multiplied by, in the same form; none if no weight of the piece decays.
        indices: The tensors' numbers in the network.
    """

    masters: Any
    gradients: Any
    moments: Sequence[Any]
    rates: Sequence[Any]
    decays: Sequence[Any]
    indices: Sequence[int]


def _factor(views: Sequence[Any]) -> Any:
    """Return ``rates`` or ``decays`` of a piece as a factor of the piece's elements."""
    return views[0] if len(views) == 1 else torch.cat(views)


class _Optimizer(RuleOptimizer):
    """What the optimizers share: the pieces of the network, and the numbers of a step on the device.

    All tensors are updated together, whatever their arrivals.
    """

    _IDLE: ClassVar[Sequence[float]]
    """Values of `_numbers` with which an update by gradients of 0 changes nothing."""

    _HAS_KERNELS: ClassVar[bool] = False
    """Whether the update has a kernel of its own, which takes whole tensors: neither blocks nor compiled loops."""

    def _prepare(self) -> None:
        network, config = self._network, self.config
        self._device = network.masters[0].device
        kinds = [parameter.kind for parameter in network.parameters]
        self._trusts = [config.trusts(kind) for kind in kinds]
        self._decays = [config.decays(kind) for kind in kinds]
        self._decayed = torch.tensor(list(map(float, self._decays)), device=self._device)
        # A recipe without weight decay needs no operators for it.
        self._has_decay = config.weight_decay > 0
        # The pieces have views of these two vectors, of a number for each tensor.
        self._rates, self._decay_rates = torch.zeros_like(self._decayed), torch.zeros_like(self._decayed)
        self._held: list[float | None] = [None] * len(self._IDLE)
        self._idle = torch.tensor(self._IDLE, device=self._device)
        self._on_device = torch.zeros_like(self._idle)
        self._one = torch.ones(1, device=self._device)
        self.momenta: list[Any] = [None] * (config.num_moments * len(kinds))
        self._pieces = list(self._cut_network())
        self._host = None if self._HAS_KERNELS else host_update(network, self.momenta)
        if self._host is not None:
            # The pieces keep no memory of gradients that the network then has elsewhere.
            self._pieces = [replace(piece, gradients=None) for piece in self._pieces]
            network.leave_gradients()

    def _cut_network(self) -> Iterator[_Piece]:
        """Yield the pieces of the network.

        On a GPU, where launching many small operators takes longer than computing them, a piece has all neighbours
        whose gradients are of one type.
        """
        masters, gradients = self._network.masters, self._network.gradients
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            found = [index for index, gradient in enumerate(gradients) if gradient.dtype == dtype]
            sizes = [masters[index].numel() for index in found]
            limit = sum(sizes) if self._device.type == "cuda" or self._HAS_KERNELS else _BLOCK_SIZE
            for places in plan_buckets(sizes, limit):
                run = [found[place] for place in places]
                together = all(are_neighbours([arrays[index] for index in run]) for arrays in (masters, gradients))
                for indices in [run] if together else [[index] for index in run]:
                    yield from self._cut(indices, limit)

    def _cut(self, indices: Sequence[int], limit: int) -> Iterator[_Piece]:
        """Yield neighbours as a piece, or a tensor above the limit as several; make their moments."""
        masters, gradients = self._network.masters, self._network.gradients
        sizes = [masters[index].numel() for index in indices]
        flat = [flattened([arrays[index] for index in indices]) for arrays in (masters, gradients)]
        for first in range(0, len(self.momenta), len(masters)):
            flat.append(torch.zeros_like(flat[0]))
            for index, part in zip(indices, flat[-1].split(sizes), strict=True):
                self.momenta[first + index] = like(part, masters[index])
        decays = {self._decays[index] for index in indices}
        has_one_rate = len(indices) == 1 or not any(self._trusts[index] for index in indices)

        def views(numbers: Any, *, is_one: bool) -> list[Any]:
            if is_one:
                return [numbers[indices[0]]]
            return [numbers[index].expand(size) for index, size in zip(indices, sizes, strict=True)]

        rates = views(self._rates, is_one=has_one_rate)
        decay_rates = views(self._decay_rates, is_one=has_one_rate and len(decays) == 1)
        for master, gradient, *moments in zip(*(each.split(limit) for each in flat), strict=True):
            own_decays = decay_rates if self._has_decay and any(decays) else []
            yield _Piece(master, gradient, moments, rates, own_decays, indices)

    def _numbers(self, hyper: HyperParameters) -> Sequence[float]:
        """Return the numbers of a step."""
        raise NotImplementedError

    def _update_by(self, numbers: Any) -> None:
        """Queue the update of all weights by the numbers of a step, on the device."""
        raise NotImplementedError

    def apply(self) -> Any:
        """Queue the update of all weights by the numbers that `hold` took last; see `update`."""
        skipped = None
        if self._network.may_overflow:
            skipped = clear_unless_finite([piece.gradients for piece in self._pieces], self._one)
        self._update_by(self._on_device if skipped is None else torch.where(skipped > 0, self._idle, self._on_device))
        if self._host is None and not self._HAS_KERNELS:
            self._network.follow_masters()
        return skipped

    def hold(self, hyper: HyperParameters) -> None:
        """Queue the transfer of a step's numbers to the device, where `apply` reads them.

        A number travels as an argument of a kernel that fills its place, so that no memory of the host has to stay as
        it is until a copy is done. A number that is the same as in the last step stays.
        """
        numbers = self._numbers(hyper)
        for place, number, held in zip(self._on_device.unbind(), numbers, self._held, strict=True):
            if number != held:
                place.fill_(number)
        self._held = list(numbers)

    def update(self, hyper: HyperParameters) -> Any:
        """Queue the update of one step; see `train.engine.protocol.Optimizer.update`."""
        self.hold(hyper)
        return self.apply()


class MomentumOptimizer(_Optimizer):
    """Update weights in place by LARS or by SGD with momentum."""

    _IDLE = (0.0, 1.0, 0.0, 0.0)

    def _prepare(self) -> None:
        super()._prepare()
        # Grouped by the type of their gradients, because a multi-tensor norm of several types is a launch a tensor.
        self._by_type: dict[torch.dtype, list[int]] = {}
        for index, gradient in enumerate(self._network.gradients):
            if self._trusts[index]:
                self._by_type.setdefault(gradient.dtype, []).append(index)
        self._trusted = [index for indices in self._by_type.values() for index in indices]
        self._places = torch.tensor(self._trusted, dtype=torch.int64, device=self._device)

    def _numbers(self, hyper: HyperParameters) -> Sequence[float]:
        return hyper.lr, hyper.momentum, hyper.weight_decay, 1.0

    def _update_by(self, numbers: Any) -> None:
        lr, _, decay, _ = numbers.unbind()
        self._rates.copy_(lr)
        if self._trusted:
            self._rates.index_copy_(0, self._places, lr * self._trust_ratios(decay))
        torch.mul(self._decayed, decay, out=self._decay_rates)
        if not self.config.is_decoupled:
            self._decay_rates.mul_(self._rates)
        if self._host is not None:
            tensors = numbers, self._rates, self._decay_rates
            self._host("momentum", *tensors, scale=-self._rescale, is_decoupled=self.config.is_decoupled)
        else:
            self._move_all(numbers)

    def _move_all(self, numbers: Any) -> None:
        """Queue the update by operators, or by a kernel of a subclass."""
        momentum, share = numbers[1], numbers[3]
        for piece in self._pieces:
            (velocity,) = piece.moments
            velocity.mul_(momentum)
            velocity.addcmul_(piece.gradients, _factor(piece.rates), value=-self._rescale)
            if piece.decays:
                shrunk = piece.masters if self.config.is_decoupled else velocity
                shrunk.addcmul_(piece.masters, _factor(piece.decays), value=-1)
            piece.masters.addcmul_(velocity, share)

    def _trust_ratios(self, decay: Any) -> Any:
        """Return the trust ratio of each tensor that has one, as a vector on the device."""
        config, network = self.config, self._network
        if config.trust_weight_decay is not None:
            decay = config.trust_weight_decay
        weights = norms([network.masters[index] for index in self._trusted])
        sums = [norms([network.gradients[index] for index in indices]) for indices in self._by_type.values()]
        means = torch.cat(sums) * self._rescale
        denominators = means + self._decayed[self._places] * decay * weights + config.epsilon
        return torch.where((weights > 0) & (means > 0), config.trust_coefficient * weights / denominators, 1.0)


def norms(tensors: Sequence[Any]) -> Any:
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


class AdamOptimizer(_Optimizer):
    """Update weights in place by Adam, see `train.engine.formulas.corrected_adam`.

    Where steps may be skipped, t counts the others, on the device, and is the last of ``momenta``.
    """

    _IDLE = (0.0, 0.0, 0.0, 0.0, 1.0)

    def _prepare(self) -> None:
        super()._prepare()
        self._time = torch.zeros(1, device=self._device) if self._network.may_overflow else None
        if self._time is not None:
            self.momenta.append(self._time)

    def _numbers(self, hyper: HyperParameters) -> Sequence[float]:
        rate, epsilon, betas = -hyper.lr, self.config.epsilon, (self.config.momentum, self.config.beta_2)
        if self._time is None:
            rate, epsilon = corrected_adam(rate, epsilon, *betas, hyper.step + 1, math.sqrt)
        return rate, 1 - hyper.momentum, 1 - self.config.beta_2, hyper.weight_decay, epsilon

    def _update_by(self, numbers: Any) -> None:
        rate, share_1, share_2, decay, epsilon = numbers.unbind()
        torch.mul(self._decayed, decay, out=self._decay_rates)
        if self._host is not None:
            tensors = numbers, self._rates, self._decay_rates
            self._host("adam", *tensors, scale=self._rescale, is_decoupled=self.config.is_decoupled)
            return
        if self._time is not None:
            self._time.add_(share_1 > 0)  # 0 in a step that is skipped
            time, betas = self._time.clamp(min=1).double(), (self.config.momentum, self.config.beta_2)
            rate, epsilon = (each.float() for each in corrected_adam(rate, epsilon, *betas, time, torch.sqrt))
        for piece in self._pieces:
            first, second = piece.moments
            mean = piece.gradients.float() * self._rescale
            if piece.decays and self.config.is_decoupled:
                piece.masters.addcmul_(piece.masters, _factor(piece.decays), value=-1)
            elif piece.decays:
                mean.addcmul_(piece.masters, _factor(piece.decays))
            first.lerp_(mean, share_1)
            second.lerp_(mean.square_(), share_2)
            root = _root(second, out=mean).add_(epsilon)
            piece.masters.addcmul_(torch.div(first, root, out=root), rate)


def _root(values: Any, *, out: Any) -> Any:
    """Write the square roots of float32 numbers to ``out`` and return it.

    NumPy rounds to the nearest number, as the compiled update does. PyTorch takes MKL's roots on a CPU, which may be
    the number next to it.
    """
    if out.is_cuda:
        return torch.sqrt(values, out=out)
    np.sqrt(values.numpy(), out=out.numpy())
    return out


def clear_unless_finite(gradients: Sequence[Any], one: Any) -> Any:
    """Return whether a gradient is not finite, 1 or 0, like ``one``; set all gradients to 0 if one is not."""
    found = torch.zeros_like(one)
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        of_type = [gradient for gradient in gradients if gradient.dtype == dtype]
        # The operator of PyTorch's GradScaler, with a scale of 1.
        torch._amp_foreach_non_finite_check_and_unscale_(of_type, found, one)
    is_found = found > 0
    for gradient in gradients:
        gradient.masked_fill_(is_found, 0)
    return found


FUSED: dict[str, type[_Optimizer]] = {"momentum": MomentumOptimizer, "adam": AdamOptimizer}
"""`OptimizerBlock.fused` -> fused implementation; any other optimizer takes its part."""
