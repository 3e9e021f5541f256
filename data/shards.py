"""The samples and the random seeds of each rank, as pure integer arithmetic. Imports nothing of ours."""

import hashlib


def shard_range(num_samples: int, rank: int, world_size: int) -> range:
    """Return the range of samples of one rank; each sample belongs to exactly one rank.

    This is the rule of DALI's readers (a test compares them), so that counts made here agree with what a rank reads.
    If there are more ranks than samples, some ranges are empty.
    """
    assert 0 <= rank < world_size
    assert num_samples >= 0
    return range(num_samples * rank // world_size, num_samples * (rank + 1) // world_size)


def stream_seed(seed: int, stream: str, rank: int) -> int:
    """Return the 63-bit seed of one rank's stream of random numbers, the same on every machine and Python.

    The seeds of two ranks of one stream always differ in the low 32 bits, because DALI 1.34 drops the high bits
    (tested). The rank is added, not hashed: hashed into 32 bits, the seeds of two of a few thousand ranks would be
    equal in about one run of a thousand.

    Args:
        seed: Seed of the run.
        stream: The purpose of the numbers, for example ``"train"``.
        rank: 0 or more, below 2**32.
    """
    assert 0 <= rank < 1 << 32
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    high, low = int.from_bytes(digest[:4], "big") >> 1, int.from_bytes(digest[4:], "big")
    return high << 32 | (low + rank) % (1 << 32)
