"""LARS and momentum SGD on a GPU in as few passes over memory as there can be, by Triton's kernels.

A step reads weights and gradients once for the norms of LARS, and once more for the update, which writes weights,
copies of 16 bits and velocities: 0.66 GB for ResNet-50. The kernels, of `train.engine.torch.momentum_kernels`, are
operators of PyTorch, so that a step can be traced without a GPU.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import Tensor

from configs.optimizers import Lars
from train.engine.torch.compiling import computed_by
from train.engine.torch.optimizers import MomentumOptimizer

CHUNK = 4096
"""Most numbers of a chunk, which a program of a kernel takes: 16 for each thread."""
_VECTOR = 8
"""Numbers that a thread may read at once where the chunks allow: 16 bytes of 16-bit numbers."""

_SCHEMAS = {
    "square_sums": "(Tensor masters, Tensor gradients, Tensor chunks, int vector, int first, Tensor(a!) sums) -> ()",
    "momentum_rates": "(Tensor sums, Tensor tensors, Tensor numbers, float rescale, float? coefficient, float epsilon, "
    "float? trust_decay, *, bool may_overflow, bool is_decoupled) -> (Tensor, Tensor)",
    "momentum_update": "(Tensor(a!) masters, Tensor(b!) velocities, Tensor(c!)? copies, Tensor gradients, "
    "Tensor chunks, int vector, Tensor factors, Tensor numbers, Tensor skipped, bool is_decoupled) -> ()",
}


def _register(name: str, schema: str) -> None:
    def shapes(_: Tensor, tensors: Tensor, numbers: Tensor, *_args: Any, **_settings: Any) -> Any:
        is_made = name == "momentum_rates"
        return (numbers.new_empty(2, len(tensors)), numbers.new_empty(1)) if is_made else None

    operator = f"resnet_records::{name}"
    torch.library.define(operator, schema)
    # On a CPU, Triton's interpreter computes them in tests.
    torch.library.impl(operator, ("cuda", "cpu"), computed_by("momentum_kernels", name))
    torch.library.register_fake(operator, shapes)


for _name, _schema in _SCHEMAS.items():
    _register(_name, _schema)


_NO_TRUST: tuple[float | None, float, float | None] = None, 0.0, None


class FusedMomentum(MomentumOptimizer):
    """Compute as `MomentumOptimizer` does, by the kernels. Where a step is skipped, its gradients stay as they are."""

    _HAS_KERNELS = True

    def _prepare(self) -> None:
        super()._prepare()
        network, config = self._network, self.config
        pairs = zip(network.weights, network.masters, strict=True)
        copies = [None if weight is master else weight.detach() for weight, master in pairs]
        memory = _memory([copy for copy in copies if copy is not None])
        self._may_overflow = network.may_overflow
        spans, total = [(0, 0)] * len(copies), 0
        self._summed: list[Sequence[Any]] = []
        self._updated: list[Sequence[Any]] = []
        for piece in self._pieces:
            # Of a chunk: its place in the piece, the count of its numbers, the tensor, and its place among the copies.
            rows: list[tuple[int, int, int, int]] = []
            start = 0
            for index in piece.indices:
                size, copy, first = network.masters[index].numel(), copies[index], total + len(rows)
                for at in range(0, size, CHUNK):
                    place = -_VECTOR if copy is None else copy.storage_offset() + at
                    rows.append((start + at, min(CHUNK, size - at), index, place))
                spans[index], start = (first, total + len(rows)), start + size
            vector = gcd(_VECTOR, *(number for begin, count, _, place in rows for number in (begin, count, place)))
            chunks, own = self._table(rows), memory if any(place >= 0 for *_, place in rows) else None
            if self._may_overflow or any(self._trusts[index] for index in piece.indices):
                self._summed.append((piece.masters, piece.gradients, chunks, vector, total))
            self._updated.append((piece.masters, *piece.moments, own, piece.gradients, chunks, vector))
            total += len(rows)
        tensors = zip(spans, self._trusts, self._decays, strict=True)
        self._tensors = self._table([(*span, *flags) for span, *flags in tensors])
        self._sums = torch.zeros(3, total, device=self._device)
        self._trust = _NO_TRUST
        if isinstance(config, Lars):
            self._trust = config.trust_coefficient, config.epsilon, config.trust_weight_decay

    def _table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self._device)

    def apply(self) -> Any:
        """See `MomentumOptimizer`."""
        operators, numbers = torch.ops.resnet_records, self._on_device
        for piece in self._summed:
            operators.square_sums(*piece, self._sums)
        factors, skipped = operators.momentum_rates(
            self._sums, self._tensors, numbers, self._rescale, *self._trust, may_overflow=self._may_overflow,
            is_decoupled=self.config.is_decoupled,
        )  # fmt: skip
        for piece in self._updated:
            operators.momentum_update(*piece, factors, numbers, skipped, self.config.is_decoupled)
        return skipped if self._may_overflow else None


def _memory(arrays: Sequence[Tensor]) -> Tensor | None:
    """Return the one piece of memory in which all arrays lie, with one axis; None if there are no arrays."""
    if not arrays:
        return None
    memory = arrays[0].untyped_storage()
    assert {each.untyped_storage()._cdata for each in arrays} == {memory._cdata}
    return arrays[0].as_strided((memory.nbytes() // arrays[0].itemsize,), (1,), 0)
