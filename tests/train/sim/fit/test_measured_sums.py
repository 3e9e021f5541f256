"""The rates of sums in shared memory by times that are chosen by hand."""

import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from train.sim.fit import measured_sums
from train.sim.fit.measured_sums import measure_sums


class _AtOnce:
    """A thread that has summed a bucket as soon as the bucket is handed over."""

    peers: dict[int, socket.socket]
    summed: list[tuple[int, object, int]]

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        type(self).peers, type(self).summed = peers, []

    def sum(self, number: int, bucket: object, arrays: Sequence[np.ndarray], done: Callable[[None], None]) -> None:
        (array,) = arrays
        assert not array.any()
        self.summed.append((number, bucket, array.nbytes))
        done(None)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rate_is_that_of_large_buckets_without_the_time_of_a_small_one(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three rounds of two large buckets take 9, 2 and 4 s, of which the first does not count; small ones 0.25 s.
    spent = [9.0, 2.0, 4.0, 0.25, 0.125, 1.0]
    moments = iter([moment for number, each in enumerate(spent) for moment in (100.0 * number, 100.0 * number + each)])
    made: list[tuple[Any, ...]] = []

    def memory(*given: Any, **named: Any) -> Any:
        made.append((*given, named))
        return SimpleNamespace(bucket=tuple)

    monkeypatch.setattr(measured_sums, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(measured_sums, "SumThread", _AtOnce)
    monkeypatch.setattr(measured_sums, "SharedMemory", memory)
    sizes = {"_BUCKETS": 2, "_BUCKET_BYTES": 4096, "_SMALL_BYTES": 64, "_ROUNDS": 3, "_SMALL_ROUNDS": 3}
    for name, value in sizes.items():
        monkeypatch.setattr(measured_sums, name, value)
    peer: Any = object()
    found = measure_sums(rank, peer, 7)
    # Each rank moves four bytes for a byte of a bucket, which takes (2 s + 4 s) / 2 / 2 buckets, less 0.25 s.
    assert found == {"sum_bytes_per_s": 4 * 4096 / (1.5 - 0.25), "sum_bucket_s": 0.25}
    assert _AtOnce.peers == {1 - rank: peer}
    assert made == [(7, rank, {"world_size": 2})]
    large = [(1, (1024,), 4096), (2, (1024,), 4096)]
    assert _AtOnce.summed == [*large * 3, *[(0, (16,), 64)] * 3]
