"""The sum of a bucket in memory that the ranks of one machine share: who sums what, and the passes over the memory.

A bucket is its arrays one behind the other. Each rank owns a shard of it and sums that shard. A rank first *gives* the
shards of the others: it copies them into an area of its own in the shared memory. When all ranks have given, a rank
*adds* the others' shares to its own shard. When all ranks have added, a rank *takes* the other shards.

The shares are added in the order of the ranks, so all ranks hold the same bits. Imports no framework.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from configs.errors import UserError

_LINE = 16
"""Numbers of float32 in a cache line: no line belongs to two shards."""

_CHUNK = 1 << 18
"""Most numbers that are worked on at once, 1 MiB, so that they are still in the cache for the second pass."""

_ADDRESSES = 1 << 40
"""Size of the shared memory. The kernel gives pages only to what is written."""


def shard_bounds(size: int, world_size: int) -> list[int]:
    """Return where each rank's shard of ``size`` numbers begins, and ``size``; shards begin at a cache line."""
    lines = -(-size // _LINE)
    return [min(size, lines * rank // world_size * _LINE) for rank in range(world_size + 1)]


def create_memory() -> int:
    """Return the open file of new memory without a name, which is gone when the last process that has it ends."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # the kernel counts the memory as a file
    descriptor = os.memfd_create("gradients")
    os.ftruncate(descriptor, _ADDRESSES if limit == resource.RLIM_INFINITY else min(limit, _ADDRESSES))
    return descriptor


class SharedMemory:
    """The memory that all ranks map; every rank must make the same buckets in the same order.

    Args:
        descriptor: The file of `create_memory`.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, descriptor: int, rank: int, world_size: int) -> None:
        self._descriptor, self._rank, self._world_size = descriptor, rank, world_size
        self._end = 0

    def bucket(self, sizes: Sequence[int], number_type: str = "float32") -> SharedBucket:
        """Return a new bucket of arrays of these sizes, which hold numbers of one type.

        Raises:
            UserError: The user's limit on the size of files leaves too little room.
        """
        own_type = np.dtype(number_type)
        bytes_each = -(-own_type.itemsize * sum(sizes) // mmap.PAGESIZE) * mmap.PAGESIZE
        end, room = self._end + bytes_each * self._world_size, os.fstat(self._descriptor).st_size
        if end > room:
            raise UserError(
                f"the ranks of this machine sum gradients in {end / 1e6:,.1f} MB of shared memory or more, and the "
                f"limit on the size of a file is {room / 1e6:,.1f} MB (ulimit -f); raise the limit"
            )
        memory = mmap.mmap(self._descriptor, bytes_each * self._world_size, offset=self._end)
        self._end = end
        areas = np.frombuffer(memory, own_type).reshape(self._world_size, -1)[:, : sum(sizes)]
        return SharedBucket(sizes, areas, self._rank)


class SharedBucket:
    """The passes of one rank over one bucket.

    Args:
        sizes: Numbers of each array.
        areas: Shared memory of shape (ranks, numbers): a row for each rank.
        rank: This rank.
    """

    def __init__(self, sizes: Sequence[int], areas: np.ndarray, rank: int) -> None:
        self._areas, self._rank, self._world_size = areas, rank, len(areas)
        # Each rank begins with another shard, so that not all read the memory of the same rank.
        self._others = [(rank + distance) % self._world_size for distance in range(1, self._world_size)]
        bounds = shard_bounds(sum(sizes), self._world_size)
        self._pieces = [_pieces(sizes, begin, end) for begin, end in pairwise(bounds)]

    def give(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy this rank's share of the other shards to where their owners find it."""
        area = self._areas[self._rank]
        for owner in self._others:
            for number, begin, end, place in self._pieces[owner]:
                area[place : place + end - begin] = arrays[number][begin:end]

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Sum this rank's shard, in the arrays and for the other ranks; all ranks must have given."""
        home = self._areas[self._home(self._rank)]
        for number, begin, end, place in self._pieces[self._rank]:
            own, total = arrays[number][begin:end], home[place : place + end - begin]
            shares = list(self._areas[:, place : place + end - begin])
            shares[self._rank] = own
            np.add(shares[0], shares[1], out=total)
            for share in shares[2:]:
                np.add(total, share, out=total)
            own[:] = total

    def take(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the sums of the other shards into the arrays; all ranks must have added."""
        for owner in self._others:
            home = self._areas[self._home(owner)]
            for number, begin, end, place in self._pieces[owner]:
                arrays[number][begin:end] = home[place : place + end - begin]

    def _home(self, owner: int) -> int:
        """Return whose area holds the sum of the shard that ``owner`` sums.

        With two ranks it is the area of the other one, which has just been read and is in the cache. With more ranks, a
        slow rank may still read there when the other one gives again, so it is the area of the owner.
        """
        return 1 - owner if self._world_size == 2 else owner  # noqa: PLR2004


def _pieces(sizes: Sequence[int], begin: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return the parts of a shard: number of the array, begin and end in the array, place in the bucket.

    Args:
        sizes: Numbers of each array of the bucket.
        begin: Where the shard begins in the bucket.
        end: Where it ends.
    """
    pieces: list[tuple[int, int, int, int]] = []
    for number, (size, first) in enumerate(zip(sizes, accumulate(sizes, initial=0), strict=False)):
        start, stop = max(begin, first), min(end, first + size)
        pieces += [
            (number, place - first, min(stop, place + _CHUNK) - first, place) for place in range(start, stop, _CHUNK)
        ]
    return pieces
