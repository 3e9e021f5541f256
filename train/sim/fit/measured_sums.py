"""The rate of sums in shared memory between two processes of this machine, by the program's own threads and passes."""

import socket
import statistics
import threading
import time

import numpy as np

from train.comm.shared_sum import SharedMemory
from train.comm.sum_thread import SumThread

BYTES_MOVED = 4
"""Bytes that each of two ranks reads and writes for a byte of a bucket, see `train.sim.collectives.shared_memory`."""
_BUCKETS, _BUCKET_BYTES = 16, 4 << 20
"""Together larger than most caches, as the gradients of a network are."""
_SMALL_BYTES = 64
_ROUNDS, _SMALL_ROUNDS = 12, 200


def measure_sums(rank: int, peer: socket.socket, memory: int) -> dict[str, float]:
    """Return the bytes/s that this rank's thread reads and writes, and the seconds of a bucket of a few bytes.

    The other rank must call this at the same time.

    Args:
        rank: 0 or 1.
        peer: Connected with the other rank.
        memory: Open file of `train.comm.shared_sum.create_memory`, the same on both ranks.
    """
    thread, shared = SumThread({1 - rank: peer}), SharedMemory(memory, rank, world_size=2)
    sizes = [_SMALL_BYTES, *[_BUCKET_BYTES] * _BUCKETS]
    buckets = [shared.bucket([size // 4]) for size in sizes]
    arrays = [np.full(size // 4, 0.0, np.float32) for size in sizes]

    def seconds(numbers: range) -> float:
        """Return the time until buckets that are handed over at once are summed."""
        waiting, start = threading.Semaphore(0), time.perf_counter()
        for number in numbers:
            thread.sum(number, buckets[number], [arrays[number]], lambda _: waiting.release())
        for _ in numbers:
            waiting.acquire()
        return time.perf_counter() - start

    # The kernel gives the pages in the first round.
    large_s = statistics.median([seconds(range(1, _BUCKETS + 1)) for _ in range(_ROUNDS)][1:]) / _BUCKETS
    small_s = statistics.median(seconds(range(1)) for _ in range(_SMALL_ROUNDS))
    return {"sum_bytes_per_s": BYTES_MOVED * _BUCKET_BYTES / (large_s - small_s), "sum_bucket_s": small_s}
