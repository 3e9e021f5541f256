"""Which sample belongs to which rank, and which random numbers: pure integers, imports nothing of ours."""

from __future__ import annotations

import hashlib

__all__ = ["shard_range", "stream_seed"]


def shard_range(num_samples: int, rank: int, world_size: int) -> range:
    """Give the samples of one rank; over all ranks each sample appears exactly once.

    It is the rule of DALI's readers (tested against them), so counts made here agree with what a rank reads. With
    more ranks than samples some ranges are empty.
    """
    assert 0 <= rank < world_size
    assert num_samples >= 0
    return range(num_samples * rank // world_size, num_samples * (rank + 1) // world_size)


def stream_seed(seed: int, stream: str, rank: int) -> int:
    """Derive the seed of one rank's stream of random numbers, 63 bits, the same on every machine and Python.

    Ranks of one stream differ in the low 32 bits already: DALI 1.34 drops the others (tested), and hashing the rank
    into 32 bits would make two of a few thousand ranks equal in one run of a thousand.

    Args:
        seed: The run's seed.
        stream: What the numbers are for, for example ``"train"``.
        rank: 0 or more, below 2**32.
    """
    assert 0 <= rank < 1 << 32
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    high, low = int.from_bytes(digest[:4], "big") >> 1, int.from_bytes(digest[4:], "big")
    return high << 32 | (low + rank) % (1 << 32)
