"""The bucket plan: which gradients are reduced together, and in which order. Pure; imports nothing of the program."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

Bucket = tuple[int, ...]

_SENT_AT_ONCE = 0.2
"""Share of the gradient bytes, last layers first, that is sent before any bucket is deferred.

These bytes keep the link busy while backward computes the gradients that are deferred.
"""


@dataclass(frozen=True)
class BucketPlan:
    """Buckets of gradient indices, in the order in which they are handed to the communicator.

    Attributes:
        order: The buckets; every gradient index occurs once.
        num_deferred: Number of buckets at the end of ``order`` that are deferred: each waits until all buckets before
            it are reduced.
        riders: Number of the float32 bucket with which the loss and the stop flag travel.
    """

    order: tuple[Bucket, ...]
    num_deferred: int = 0
    riders: int = 0

    @property
    def last_prompt(self) -> int:
        """Return the number of the last bucket that is not deferred; it holds the first layer, which is ready last."""
        return len(self.order) - self.num_deferred - 1

    def arrivals(self, num_groups: int) -> tuple[int, ...]:
        """Return the arrival group of each gradient, by index; group 0 arrives first.

        Args:
            num_groups: Approximate number of groups. Groups have about the same number of buckets; deferred buckets
                share no group with others.
        """
        firsts = [number * num_groups // len(self.order) for number in range(self.last_prompt + 1)]
        lasts = [num_groups + number * num_groups // len(self.order) for number in range(self.num_deferred)]
        groups = {index: group for bucket, group in zip(self.order, firsts + lasts, strict=True) for index in bucket}
        ranks = {group: rank for rank, group in enumerate(sorted(set(groups.values())))}
        return tuple(ranks[groups[index]] for index in sorted(groups))


def bucket_cap(sizes_bytes: Sequence[int], least_bytes: int, fraction: float) -> int:
    """Return the largest size of a bucket: ``fraction`` of all gradients, but not less than ``least_bytes``.

    A cap that suits a network with 1 MB of gradients cuts those of ResNet-50 into hundreds of messages.

    Args:
        sizes_bytes: Size of each gradient.
        least_bytes: Size up to which a bucket is filled in any network.
        fraction: From 0 to 1.
    """
    return max(least_bytes, math.ceil(fraction * sum(sizes_bytes)))


def plan_buckets(sizes_bytes: Sequence[int], cap_bytes: int) -> tuple[Bucket, ...]:
    """Return buckets of gradients in the order in which backward computes them.

    Args:
        sizes_bytes: Size of each gradient, first layer first.
        cap_bytes: Largest size of a bucket; a single larger gradient has a bucket of its own.

    Returns:
        Buckets of indices into ``sizes_bytes``, last index first; every index occurs once.
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


def plan_reductions(
    sizes_bytes: Sequence[int], cap_bytes: int, deferred_fraction: float, apart: Collection[int] = ()
) -> BucketPlan:
    """Return the buckets of `plan_buckets` in an order in which the first layers' sums arrive earlier.

    An allreduce sums numbers of one type, so a bucket with two types would become two messages. Beside float16
    gradients, the float32 ones of batch norm therefore have a bucket of their own. It goes just before the bucket of
    the first layer, whose batch norm is nearly last.

    The next forward pass needs the first layers first, but backward computes their gradients last, so on a slow link
    they would wait behind all others. Therefore some buckets of late layers are deferred: they are sent after the
    first layers, while the next forward pass runs, which needs late layers last. Deferred buckets follow the order of
    the forward pass. All ranks need the same order, so it is fixed. *Sources*: Jayarajan et al., arXiv:1905.03960,
    section 4; Peng et al., SOSP 2019, doi:10.1145/3341301.3359642.

    Args:
        sizes_bytes: As for `plan_buckets`.
        cap_bytes: As for `plan_buckets`.
        deferred_fraction: Approximate share of all bytes that is deferred.
        apart: Indices of gradients of another type than most; some others are left.
    """
    if apart:
        rest = [index for index in range(len(sizes_bytes)) if index not in apart]
        plan = plan_reductions([sizes_bytes[index] for index in rest], cap_bytes, deferred_fraction)
        order = [tuple(rest[place] for place in bucket) for bucket in plan.order]
        order.insert(plan.last_prompt, tuple(sorted(apart, reverse=True)))
        return BucketPlan(tuple(order), plan.num_deferred, riders=plan.last_prompt)
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
