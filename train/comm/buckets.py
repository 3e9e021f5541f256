"""Which gradients travel together, and in which order: a pure plan. Imports nothing of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["BucketPlan", "plan_buckets", "plan_reductions"]

Bucket = tuple[int, ...]

_SENT_AT_ONCE = 0.2
"""Share of the bytes, last layers first, that keeps the link busy while backward makes those that may wait."""


@dataclass(frozen=True)
class BucketPlan:
    """Buckets of gradients, by index, in the order in which they are handed over.

    Attributes:
        order: Every index once.
        num_deferred: How many of the last buckets wait until all before them are back, and then for each other.
    """

    order: tuple[Bucket, ...]
    num_deferred: int = 0

    @property
    def last_prompt(self) -> int:
        """Number of the bucket for which the deferred ones wait: it holds the first layer, which is ready last."""
        return len(self.order) - self.num_deferred - 1

    def arrivals(self, num_groups: int) -> tuple[int, ...]:
        """Say with which others each gradient's sum comes back: its group, by index, from the first to arrive.

        Args:
            num_groups: About how many, alike in the number of buckets; deferred ones are never among others.
        """
        firsts = [number * num_groups // len(self.order) for number in range(self.last_prompt + 1)]
        lasts = [num_groups + number * num_groups // len(self.order) for number in range(self.num_deferred)]
        groups = {index: group for bucket, group in zip(self.order, firsts + lasts, strict=True) for index in bucket}
        ranks = {group: rank for rank, group in enumerate(sorted(set(groups.values())))}
        return tuple(ranks[groups[index]] for index in sorted(groups))


def plan_buckets(sizes_bytes: Sequence[int], cap_bytes: int) -> tuple[Bucket, ...]:
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


def plan_reductions(sizes_bytes: Sequence[int], cap_bytes: int, deferred_fraction: float) -> BucketPlan:
    """Order the buckets of `plan_buckets` so that the first layers' sums, which the next step needs first, come sooner.

    On a slow link the first layers' gradients, made last, would stand behind all others, and the next forward behind
    them. So some of the large late layers' gradients let them pass and travel under the next forward, which needs them
    last; among themselves they go in the order in which it does (Jayarajan et al., arXiv:1905.03960, section 4; Peng
    et al., SOSP 2019, doi:10.1145/3341301.3359642). A fixed order, since all ranks need the same.

    Args:
        sizes_bytes: As for `plan_buckets`.
        cap_bytes: As for `plan_buckets`.
        deferred_fraction: About this share of all bytes lets the first layers pass.
    """
    buckets = plan_buckets(sizes_bytes, cap_bytes)
    total = sum(sizes_bytes)
    before = [0, *accumulate(sum(sizes_bytes[index] for index in bucket) for bucket in buckets[:-1])]
    start, stop = (
        min(range(len(before)), key=lambda number: abs(before[number] - share * total))
        for share in (_SENT_AT_ONCE, _SENT_AT_ONCE + deferred_fraction)
    )
    if not deferred_fraction or start >= stop:
        return BucketPlan(buckets)
    return BucketPlan((*buckets[:start], *buckets[stop:], *reversed(buckets[start:stop])), stop - start)
