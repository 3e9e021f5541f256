"""Which gradients travel together: a pure plan, last layer first. Imports nothing."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["plan_buckets"]


def plan_buckets(sizes_bytes: Sequence[int], cap_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Fuse gradients into buckets in the order in which backward makes them.

    Args:
        sizes_bytes: Size of each gradient, first layer first.
        cap_bytes: No bucket exceeds it, save one that a single larger gradient fills alone.

    Returns:
        Buckets of indices into ``sizes_bytes``; the last index comes first, every index once.
    """
    assert cap_bytes > 0
    buckets: list[list[int]] = []
    room = 0
    for index in range(len(sizes_bytes) - 1, -1, -1):
        if not buckets or sizes_bytes[index] > room:
            buckets.append([])
            room = cap_bytes
        buckets[-1].append(index)
        room -= sizes_bytes[index]
    return tuple(tuple(bucket) for bucket in buckets)
