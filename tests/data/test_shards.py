"""Shards hold every sample once, and seeds of ranks differ; tests/data/input compares shards with DALI's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.shards import shard_range, stream_seed


@given(st.integers(0, 5000), st.integers(1, 300))
def test_every_sample_is_in_exactly_one_shard(num_samples: int, world_size: int) -> None:
    shards = [shard_range(num_samples, rank, world_size) for rank in range(world_size)]
    assert [sample for shard in shards for sample in shard] == list(range(num_samples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_seeds_of_all_ranks_and_streams_differ_in_the_bits_that_dali_keeps() -> None:
    streams, runs = ("train", "eval", "synthetic train"), range(10)
    seeds = [stream_seed(run, stream, rank) for run in runs for stream in streams for rank in range(2048)]
    assert len({seed % 2**32 for seed in seeds}) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("seed", "stream", "rank", "expected"),
    [
        (1, "train", 0, 5663065008173795922),
        (8241, "eval", 2047, 8408193267819649281),
    ],
)
def test_seeds_are_those_of_every_earlier_run(seed: int, stream: str, rank: int, expected: int) -> None:
    """Any other derivation would be as random, and no recorded run would repeat."""
    assert stream_seed(seed, stream, rank) == expected
