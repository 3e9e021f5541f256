"""Shards of a bucket, and the passes of several ranks over the memory that they share."""

import os
import resource
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import UserError
from train.comm.shared_sum import SharedMemory, create_memory, shard_bounds


@given(st.integers(1, 10**8), st.integers(2, 64))
def test_shards_cover_a_bucket_begin_at_cache_lines_and_differ_by_one_line_at_most(size: int, world_size: int) -> None:
    bounds = shard_bounds(size, world_size)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, world_size + 1)
    assert all(bound % 16 == 0 for bound in bounds[:-1] if bound < size)
    lengths = [end - begin for begin, end in pairwise(bounds)]
    assert min(lengths) >= 0
    assert max(lengths) - min(lengths) < 32


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_all_ranks_hold_the_sum_in_the_order_of_the_ranks_step_after_step(world_size: int) -> None:
    sizes, random = [1, 300, 7, 150_000, 0, 129], np.random.default_rng(1)
    file = create_memory()
    memories = [SharedMemory(file, rank, world_size) for rank in range(world_size)]
    for number_type in ("float32", "float16"):  # the second bucket must not touch the first one
        buckets = [memory.bucket(sizes, number_type) for memory in memories]
        for _ in range(2):
            own = [[random.standard_normal(size).astype(number_type) for size in sizes] for _ in range(world_size)]
            expected = [arrays[0].copy() for arrays in zip(*own, strict=True)]
            for arrays in own[1:]:
                for total, array in zip(expected, arrays, strict=True):
                    np.add(total, array, out=total)
            for verb in ("give", "add", "take"):
                for bucket, arrays in zip(buckets, own, strict=True):
                    getattr(bucket, verb)(arrays)
            for arrays in own:
                for array, total in zip(arrays, expected, strict=True):
                    np.testing.assert_array_equal(array, total)
    os.close(file)


def test_a_slow_rank_may_take_while_another_one_gives_again() -> None:
    file = create_memory()
    buckets = [SharedMemory(file, rank, 3).bucket([96]) for rank in range(3)]
    own = [[np.full(96, 10.0**rank, np.float32)] for rank in range(3)]
    for verb in ("give", "add"):
        for bucket, arrays in zip(buckets, own, strict=True):
            getattr(bucket, verb)(arrays)
    for bucket, arrays in zip(buckets[:2], own, strict=False):
        bucket.take(arrays)
        bucket.give([np.full(96, 7.0, np.float32)])
    buckets[2].take(own[2])
    assert [set(arrays[0]) for arrays in own] == [{111.0}] * 3
    os.close(file)


def test_a_limit_on_the_size_of_files_counts_only_if_the_gradients_are_larger() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        file = create_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    memory = SharedMemory(file, 0, 2)
    memory.bucket([1 << 17])
    with pytest.raises(UserError, match=r"gradients in 1\.1 MB of shared memory .* is 1\.0 MB \(ulimit -f\); raise"):
        memory.bucket([1 << 10])
    os.close(file)
