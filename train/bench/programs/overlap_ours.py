"""One rank of ``bench overlap``: the same step, its gradients travelling in different ways, in turn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from train.bench.bench_rank import BenchRank, open_rank, steps_of
from train.bench.samples import tell
from train.comm.buckets import BucketPlan, plan_buckets, plan_reductions
from train.comm.communicator import Communicator, SingleProcess

__all__ = ["NONE", "OVERLAPPED", "SERIAL", "Way", "main"]

NONE, SERIAL, OVERLAPPED = "none", "serial", "overlapped"


@dataclass(frozen=True)
class Way:
    """How gradients travel.

    Attributes:
        when: Never (``none``), after backward has ended (``serial``) or beside it (``overlapped``).
        bucket_bytes: Cap of one reduction.
        order: Which bucket is handed over first: that of the ``last`` layer, or of the ``first``.
        wire: Type of the numbers sent.
        deferred: Share of the bytes that lets the first layers' pass.
    """

    when: str
    bucket_bytes: int = 1 << 20
    order: str = "last"
    wire: str = "float32"
    deferred: float = 0.0

    @property
    def name(self) -> str:
        """Write it as `parse` reads it."""
        return ":".join([self.when, str(self.bucket_bytes), self.order, self.wire, f"{self.deferred:g}"])

    @property
    def title(self) -> str:
        """Write it for people; what is usual is left out."""
        if self.when == NONE:
            return NONE
        order = "" if self.order == "last" else ", first layer first"
        wire = "" if self.wire == "float32" else f", {self.wire}"
        deferred = f", {self.deferred:.0%} deferred" if self.deferred else ""
        return f"{self.when} {self.bucket_bytes >> 10} KiB{order}{wire}{deferred}"

    @classmethod
    def parse(cls, text: str) -> Way:
        """Read ``when:bucket_bytes:order:wire:deferred``."""
        when, bucket_bytes, order, wire, deferred = text.split(":")
        return cls(when, int(bucket_bytes), order, wire, float(deferred))

    def steps(self, rank: BenchRank) -> Callable[[int], Any]:
        """Make steps whose gradients travel so."""
        buckets = self._buckets([array.size * array.dtype().itemsize for array in rank.parts.model.network.gradients])
        return steps_of(rank, self._communicator(rank.parts.communicator), buckets)

    def _buckets(self, sizes: Sequence[int]) -> BucketPlan:
        if self.order == "last":
            return plan_reductions(sizes, self.bucket_bytes, self.deferred)
        mirrored = plan_buckets(sizes[::-1], self.bucket_bytes)
        return BucketPlan(tuple(tuple(len(sizes) - 1 - index for index in bucket) for bucket in mirrored))

    def _communicator(self, real: Communicator) -> Communicator:
        if self.when == NONE:
            return SingleProcess()
        return _Travelling(real, self)


class _Travelling(SingleProcess):
    """Reduce in one way, under names of its own: Horovod remembers the shape that goes with a name."""

    def __init__(self, real: Communicator, way: Way) -> None:
        self._real, self._way = real, way

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """See `Communicator`."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        if self._way.when == SERIAL and name == "bucket_0":
            mx.nd.waitall()
        name = f"{self._way.name} {name}"
        if self._way.wire == "float32":
            self._real.reduce(name, arrays, priority)
            return
        sent = [array.astype(self._way.wire) for array in arrays]
        self._real.reduce(name, sent, priority)
        for array, received in zip(arrays, sent, strict=True):
            mx.nd.cast(received, dtype="float32", out=array)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell milliseconds a step of each way, one sample a round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--rounds", type=int, required=True, help="beside one that warms up")
    parser.add_argument("--steps", type=int, required=True, help="in one sample")
    parser.add_argument("ways", nargs="+", type=Way.parse)
    options = parser.parse_args(arguments)
    rank = open_rank(options.overrides)
    ways = {way: way.steps(rank) for way in options.ways}
    samples: dict[Way, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(1 + options.rounds):
        for way, steps in ways.items():
            step_ms = 1e3 * rank.time_between_s(steps, options.steps) / options.steps
            if number:
                samples[way].append({"step_ms": step_ms})
    for way, rounds in samples.items():
        tell(rank.parts.identity, way.name, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
