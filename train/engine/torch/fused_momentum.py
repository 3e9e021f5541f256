"""The update of LARS and momentum SGD on a GPU in one pass over memory, by a kernel of Triton's.

It reads weights, gradients and velocities, and writes weights, copies of 16 bits and velocities. The kernel, of
`train.engine.torch.momentum_kernels`, is an operator of PyTorch, so that a step can be traced without a GPU.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import Tensor

from train.engine.torch.compiling import computed_by
from train.engine.torch.optimizers import MomentumOptimizer

CHUNK = 4096
"""Most numbers of a chunk, which a program of the kernel takes: 16 for each thread."""
_VECTOR = 8
"""Numbers that a thread may read at once where the chunks allow: 16 bytes of 16-bit numbers."""

_NAME = "resnet_records::momentum_update"
_SCHEMA = (
    "(Tensor(a!) masters, Tensor(b!) velocities, Tensor(c!)? copies, Tensor gradients, Tensor chunks, int vector, "
    "Tensor rates, Tensor decays, Tensor numbers, float rescale, bool is_decoupled) -> ()"
)
torch.library.define(_NAME, _SCHEMA)
# On a CPU, Triton's interpreter computes it in tests.
torch.library.impl(_NAME, ("cuda", "cpu"), computed_by("momentum_kernels", "momentum_update"))
torch.library.register_fake(_NAME, lambda *_: None)


class FusedMomentum(MomentumOptimizer):
    """Compute as `MomentumOptimizer` does, by the kernel, which also writes the copies of 16 bits."""

    _HAS_KERNELS = True

    def _prepare(self) -> None:
        super()._prepare()
        network = self._network
        pairs = zip(network.weights, network.masters, strict=True)
        copies = [None if weight is master else weight.detach() for weight, master in pairs]
        memory = _memory([copy for copy in copies if copy is not None])
        self._launches: list[Sequence[Any]] = []
        for piece in self._pieces:
            # Of a chunk: its place in the piece, the count of its numbers, the tensor, and its place among the copies.
            rows: list[tuple[int, int, int, int]] = []
            start = 0
            for index in piece.indices:
                size, copy = network.masters[index].numel(), copies[index]
                for at in range(0, size, CHUNK):
                    place = -_VECTOR if copy is None else copy.storage_offset() + at
                    rows.append((start + at, min(CHUNK, size - at), index, place))
                start += size
            vector = gcd(_VECTOR, *(number for begin, count, _, place in rows for number in (begin, count, place)))
            chunks = torch.tensor(rows, dtype=torch.int32, device=self._device)
            own = memory if any(place >= 0 for *_, place in rows) else None
            self._launches.append((piece.masters, *piece.moments, own, piece.gradients, chunks, vector))

    def _move_all(self, numbers: Tensor) -> None:
        for launch in self._launches:
            torch.ops.resnet_records.momentum_update(
                *launch, self._rates, self._decay_rates, numbers, self._rescale, self.config.is_decoupled
            )


def _memory(arrays: Sequence[Tensor]) -> Tensor | None:
    """Return the one piece of memory in which all arrays lie, with one axis; None if there are no arrays."""
    if not arrays:
        return None
    memory = arrays[0].untyped_storage()
    assert {each.untyped_storage()._cdata for each in arrays} == {memory._cdata}
    return arrays[0].as_strided((memory.nbytes() // arrays[0].itemsize,), (1,), 0)
