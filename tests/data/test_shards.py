"""Shards agree with DALI's own readers, and seeds of ranks differ."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

from data.recordio import pack_image, write_records
from data.shards import shard_range, stream_seed


def read_labels(folder: Path, rank: int, world_size: int, count: int) -> list[int]:
    pipeline: Any = Pipeline(count, 1, None, prefetch_queue_depth=1)
    with pipeline:
        _, labels = fn.readers.mxnet(
            path=[str(folder / "a.rec")],
            index_path=[str(folder / "a.idx")],
            shard_id=rank,
            num_shards=world_size,
            stick_to_shard=True,
        )
        pipeline.set_outputs(labels)
    pipeline.build()
    return [int(label) for label in pipeline.run()[0].as_array().ravel()]


@pytest.mark.parametrize(
    ("num_samples", "world_size", "ranks"),
    [(10, 1, [0]), (10, 3, [0, 1, 2]), (599, 2, [0, 1]), (100, 7, range(7)), (50_000, 2048, [0, 1, 847, 1024, 2047])],
)
def test_a_shard_is_what_dali_reads(tmp_path: Path, num_samples: int, world_size: int, ranks: list[int]) -> None:
    write_records(tmp_path / "a", (pack_image(number, number, b"-") for number in range(num_samples)))
    for rank in ranks:
        shard = shard_range(num_samples, rank, world_size)
        # One batch more than the shard holds: DALI starts again with the first sample of the shard.
        assert read_labels(tmp_path, rank, world_size, len(shard) + 1) == [*shard, shard[0]]


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
