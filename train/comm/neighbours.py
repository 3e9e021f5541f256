"""Tensors that lie one after another in one piece of memory, and that piece as one tensor. Imports no PyTorch."""

from collections.abc import Sequence
from typing import Any


def are_neighbours(arrays: Sequence[Any]) -> bool:
    """Return whether arrays lie one after another in one piece of memory, without gaps."""
    place, memory = arrays[0].storage_offset(), arrays[0].untyped_storage()._cdata
    for array in arrays:
        if not is_dense(array) or (array.storage_offset(), array.untyped_storage()._cdata) != (place, memory):
            return False
        place += array.numel()
    return True


def is_dense(array: Any) -> bool:
    """Return whether an array's numbers lie together in memory, in any order of its axes."""
    last: int = sum((n - 1) * step for n, step in zip(array.shape, array.stride(), strict=True))
    return last + 1 == int(array.numel())


def flattened(arrays: Sequence[Any]) -> Any:
    """Return the memory of arrays for which `are_neighbours` holds, as a tensor of one axis."""
    first = arrays[0].detach()
    return first.as_strided((sum(array.numel() for array in arrays),), (1,), first.storage_offset())


def like(part: Any, array: Any) -> Any:
    """Return a view of a flat part with an array's shape and, if they leave no gaps, its strides: copying is faster."""
    if not is_dense(array):
        return part.view(array.shape)
    return part.as_strided(array.shape, array.stride(), part.storage_offset())
