"""Sums in shared memory of PyTorch's tensors on a CPU, which are computed when they are handed over."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import torch

from train.comm.sum_thread import Done


class Queue:
    """See `train.comm.shared_memory.ArrayQueue`."""

    def __init__(self) -> None:
        self._pending: list[Future[None]] = []

    def start(
        self, name: str, arrays: Sequence[Any], priority: int, begin: Callable[[Sequence[np.ndarray], Done], None]
    ) -> None:
        """Begin at once."""
        result: Future[None] = Future()
        self._pending.append(result)
        begin([_flat(array) for array in arrays], partial(_settle, result))

    def complete(self) -> None:
        """Wait for the sums on the host, since PyTorch's CPU has no queue that could."""
        while self._pending:
            self._pending.pop().result()

    def divide(self, arrays: Sequence[Any], divisor: int) -> None:
        """Divide each tensor."""
        with torch.no_grad():
            torch._foreach_div_(list(arrays), divisor)


def _settle(result: Future[None], error: Exception | None) -> None:
    if error is None:
        result.set_result(None)
    else:
        result.set_exception(error)


def _flat(array: Any) -> np.ndarray:
    """Return a flat view of a tensor's memory, whatever the order of its axes there."""
    own = array.detach()
    assert 1 + sum((n - 1) * step for n, step in zip(own.shape, own.stride(), strict=True)) == own.numel(), own.stride()
    flat: np.ndarray = own.as_strided((own.numel(),), (1,)).numpy()
    return flat
