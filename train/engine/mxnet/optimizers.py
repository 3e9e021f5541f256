"""LARS, momentum SGD and Adam on MXNet's fused operators; nothing is read back to the host.

The stock ``mx.optimizer.LARS`` is not used: it waits for norms on the host, loses its skip list under
``gluon.Trainer``, and corrects the momentum of only the first aggregated chunk (measured against `tests/oracles.py`).

`train.engine.formulas` has the source of LARS.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np

from configs.optimizers import HyperParameters
from train.engine.formulas import corrected_adam
from train.engine.mxnet.host_operator import HostOperators, memory_of
from train.ideas.muon import MuonOptimizer
from train.ideas.update_rule import RuleOptimizer
from train.networks.layer import Parameter

_BLOCK = 1 << 15
"""Elements that a host updates at a time: four arrays of them, 512 KiB, stay in the cache of a core."""

OPERATOR_LIMIT = 60
"""Tensors that one fused operator takes (MXNet 1.9.1, multi_sgd: at most 60)."""


def operator_parts(tensors: Sequence[Any]) -> list[Sequence[Any]]:
    """Return tensors in parts that one fused operator takes."""
    return [tensors[start : start + OPERATOR_LIMIT] for start in range(0, len(tensors), OPERATOR_LIMIT)]


_Tensor = tuple[Parameter, Any, Any, Any, Any]
"""A parameter with its weight, master, gradient and momentum."""


class _Chunk:
    """Tensors of one operator call: of the same arrival group and gradient type, all with a trust ratio or none."""

    def __init__(self, config: Any, tensors: Sequence[_Tensor]) -> None:
        parameters, *columns = (list(column) for column in zip(*tensors, strict=True))
        self.weights, self.masters, self.gradients, self.momenta = columns
        decays = [config.decays(each.kind) for each in parameters]
        self.decay_mask = mx.nd.array(list(map(float, decays)), ctx=self.weights[0].context)
        self.decayed = [master for master, is_decayed in zip(self.masters, decays, strict=True) if is_decayed]
        self.has_trust_ratio = config.trusts(parameters[0].kind)


class MomentumOptimizer(RuleOptimizer):
    """Update weights in place by LARS or by SGD with momentum, arrival group by arrival group."""

    def _prepare(self) -> None:
        super()._prepare()
        network = self._network
        columns = (network.parameters, network.weights, network.masters, network.gradients, self.momenta)
        alike: dict[tuple[int, bool, bool], list[_Tensor]] = {}
        for group, each in zip(self._arrivals, zip(*columns, strict=True), strict=True):
            key = (group, not self.config.trusts(each[0].kind), not _is_half(each[3]))
            alike.setdefault(key, []).append(each)
        parts = [part for key in sorted(alike) for part in operator_parts(alike[key])]
        self._chunks = [_Chunk(self.config, part) for part in parts]

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""
        for chunk in self._chunks:
            rates = mx.nd.full((len(chunk.weights),), hyper.lr, ctx=chunk.decay_mask.context)
            if chunk.has_trust_ratio:
                rates = self._trusted(chunk, rates, hyper.weight_decay)
            decay = hyper.weight_decay
            if self.config.is_decoupled:
                for master in chunk.decayed:
                    master *= 1 - decay  # noqa: PLW2901 (in place)
                decay = 0.0
            self._apply(chunk, rates, chunk.decay_mask * decay, hyper.momentum)

    def _apply(self, chunk: _Chunk, rates: Any, decays: Any, momentum: float) -> None:
        """Queue the update of a chunk; for float16 gradients, one operator writes weights and masters."""
        is_half = _is_half(chunk.gradients[0])
        operator = mx.nd.preloaded_multi_mp_sgd_mom_update if is_half else mx.nd.preloaded_multi_sgd_mom_update
        updated = chunk.weights if is_half else chunk.masters
        columns = [updated, chunk.gradients, chunk.momenta, *([chunk.masters] if is_half else [])]
        operator(
            *[array for row in zip(*columns, strict=True) for array in row], rates, decays, out=updated,
            num_weights=len(updated), momentum=momentum, rescale_grad=self._rescale,
        )  # fmt: skip
        if not is_half:
            for weight, master in zip(chunk.weights, chunk.masters, strict=True):
                if weight is not master:
                    master.copyto(weight)

    def _trusted(self, chunk: _Chunk, rates: Any, weight_decay: float) -> Any:
        """Return each tensor's learning rate times its trust ratio."""
        own = self.config.trust_weight_decay
        return mx.nd.multi_lars(
            rates,
            mx.nd.multi_sum_sq(*chunk.masters, num_arrays=len(chunk.masters)),
            mx.nd.multi_sum_sq(*chunk.gradients, num_arrays=len(chunk.gradients)),
            chunk.decay_mask * (weight_decay if own is None else own),
            eta=self.config.trust_coefficient, eps=self.config.epsilon, rescale_grad=self._rescale,
        )  # fmt: skip


class HostMomentum(RuleOptimizer):
    """Update float32 weights in the memory of the host by LARS or by SGD, in one pass after one for the norms.

    The multi-tensor operators, made for GPUs, walk through all tensors side by side: for ResNet-50 they take 204 ms of
    processor time on one EPYC core, and this class takes 73 ms.
    """

    def _prepare(self) -> None:
        super()._prepare()
        network, self._operators = self._network, HostOperators()
        kinds = [parameter.kind for parameter in network.parameters]
        tensors = zip(kinds, network.weights, network.gradients, self.momenta, strict=True)
        self._groups: dict[int, list[Sequence[Any]]] = {}
        for group, tensor in sorted(zip(self._arrivals, tensors, strict=True), key=lambda each: each[0]):
            self._groups.setdefault(group, []).append(tensor)

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""
        for group in self._groups.values():
            writes = [array for _, weight, _, momentum in group for array in (weight, momentum)]
            reads = [gradient for _, _, gradient, _ in group]
            self._operators.queue(
                "momentum_update", partial(self._move_group, group, hyper), reads=reads, writes=writes
            )

    def _move_group(self, group: Sequence[Sequence[Any]], hyper: HyperParameters) -> None:
        space = np.empty(_BLOCK, np.float32)
        for kind, *tensors in group:
            decay = hyper.weight_decay * self.config.decays(kind)
            arrays = weight, gradient, _ = [memory_of(array) for array in tensors]
            rate = hyper.lr * self._trust_ratio(kind, weight, gradient, decay)
            for start in range(0, weight.size, _BLOCK):
                weights, gradients, momenta = (array[start : start + _BLOCK] for array in arrays)
                product = space[: weights.size]
                momenta *= hyper.momentum
                momenta -= np.multiply(gradients, rate * self._rescale, out=product)
                if self.config.is_decoupled:
                    weights *= 1 - decay
                else:
                    momenta -= np.multiply(weights, rate * decay, out=product)
                weights += momenta

    def _trust_ratio(self, kind: str, weight: np.ndarray, gradient: np.ndarray, decay: float) -> float:
        if not self.config.trusts(kind):
            return 1.0
        if self.config.trust_weight_decay is not None:
            decay = self.config.trust_weight_decay * self.config.decays(kind)
        weight_norm = float(np.dot(weight, weight)) ** 0.5
        gradient_norm = self._rescale * float(np.dot(gradient, gradient)) ** 0.5
        if not (weight_norm and gradient_norm):
            return 1.0
        ratio = weight_norm / (gradient_norm + decay * weight_norm + self.config.epsilon)
        return float(self.config.trust_coefficient * ratio)


class AdamOptimizer(RuleOptimizer):
    """Update weights in place by Adam, see `train.engine.formulas.corrected_adam`; all tensors are one group."""

    def _prepare(self) -> None:
        super()._prepare()
        network = self._network
        weights, masters, gradients = network.weights, network.masters, network.gradients
        firsts, seconds = self.momenta[: len(masters)], self.momenta[len(masters) :]
        decays = [self.config.decays(each.kind) for each in network.parameters]
        self._tensors = list(zip(weights, masters, gradients, firsts, seconds, decays, strict=True))

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of one step."""
        betas = beta_1, beta_2 = hyper.momentum, self.config.beta_2
        lr, epsilon = corrected_adam(hyper.lr, self.config.epsilon, *betas, hyper.step + 1, math.sqrt)
        for weight, master, gradient, first, second, decays in self._tensors:
            decay = hyper.weight_decay if decays else 0.0
            if decay and self.config.is_decoupled:
                master *= 1 - decay  # noqa: PLW2901 (in place)
                decay = 0.0
            mx.nd.adam_update(
                master, gradient.astype("float32", copy=False), first, second, out=master,
                lr=lr, beta1=beta_1, beta2=beta_2, epsilon=epsilon,
                wd=decay, rescale_grad=self._rescale,
            )  # fmt: skip
            if weight is not master:
                master.copyto(weight)


class NesterovMuon(MuonOptimizer):
    """Muon, with one operator for both sums of a tensor's momentum."""

    def _take_momentum(
        self, steps: Sequence[Any], velocities: Sequence[Any], sums: Sequence[Any], momentum: float
    ) -> None:
        """See `MuonOptimizer`. The operator takes a step along -lr u."""
        for step, velocity, total in zip(steps, velocities, sums, strict=True):
            mx.nd.zeros_like(step, out=step)
            mx.nd.nag_mom_update(
                step, total, velocity, lr=-1.0, momentum=momentum, rescale_grad=self._rescale, out=step
            )


FUSED: dict[str, type[RuleOptimizer]] = {"momentum": MomentumOptimizer, "adam": AdamOptimizer, "muon": NesterovMuon}
"""`OptimizerBlock.fused` -> implementation by MXNet's operators; any other optimizer takes its part."""


def _is_half(array: Any) -> bool:
    return bool(array.dtype == np.float16)
