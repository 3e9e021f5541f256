"""One rank of ``bench overlap``: the same step with different transfers of the gradients, in turn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from train.bench.bench_rank import BenchRank, open_rank, steps_of
from train.bench.samples import write_samples
from train.comm.buckets import BucketPlan, plan_buckets, plan_reductions
from train.comm.communicator import Communicator, SingleProcess

__all__ = ["NONE", "OVERLAPPED", "SERIAL", "Transfer", "main"]

NONE, SERIAL, OVERLAPPED = "none", "serial", "overlapped"


@dataclass(frozen=True)
class Transfer:
    """When and how the gradients are reduced.

    Attributes:
        when: Never (``none``), after backward has ended (``serial``) or during backward (``overlapped``).
        bucket_bytes: Largest size of one reduction.
        order: The layer with the first bucket: the ``last`` layer of the network, or the ``first``.
        wire: Data type of the numbers sent.
        deferred: Share of the bytes that is reduced after the gradients of the first layers
            (`train.comm.buckets.plan_reductions`).
    """

    when: str
    bucket_bytes: int = 1 << 20
    order: str = "last"
    wire: str = "float32"
    deferred: float = 0.0

    @property
    def name(self) -> str:
        """Return the text that `parse` reads."""
        return ":".join([self.when, str(self.bucket_bytes), self.order, self.wire, f"{self.deferred:g}"])

    @property
    def title(self) -> str:
        """Return the name in the table; defaults are left out."""
        if self.when == NONE:
            return NONE
        order = "" if self.order == "last" else ", first layer first"
        wire = "" if self.wire == "float32" else f", {self.wire}"
        deferred = f", {self.deferred:.0%} deferred" if self.deferred else ""
        return f"{self.when} {self.bucket_bytes >> 10} KiB{order}{wire}{deferred}"

    @classmethod
    def parse(cls, text: str) -> Transfer:
        """Return the transfer of the text ``when:bucket_bytes:order:wire:deferred``."""
        when, bucket_bytes, order, wire, deferred = text.split(":")
        return cls(when, int(bucket_bytes), order, wire, float(deferred))

    def steps(self, rank: BenchRank) -> Callable[[int], Any]:
        """Return a function that queues a number of steps with this transfer, as `steps_of` does."""
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
        return _TransferCommunicator(real, self)


class _TransferCommunicator(SingleProcess):
    """Reduces as one transfer says.

    Each transfer has names of its own for the reductions, because Horovod remembers the shape that belongs to a name.
    """

    def __init__(self, real: Communicator, transfer: Transfer) -> None:
        self._real, self._transfer = real, transfer

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """See `Communicator`."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        if self._transfer.when == SERIAL and name == "bucket_0":
            mx.nd.waitall()
        name = f"{self._transfer.name} {name}"
        if self._transfer.wire == "float32":
            self._real.reduce(name, arrays, priority)
            return
        sent = [array.astype(self._transfer.wire) for array in arrays]
        self._real.reduce(name, sent, priority)
        for array, received in zip(arrays, sent, strict=True):
            mx.nd.cast(received, dtype="float32", out=array)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the milliseconds a step of each transfer, with one sample in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="laptop")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--rounds", type=int, required=True, help="rounds that count, after one that does not")
    parser.add_argument("--steps", type=int, required=True, help="steps of one sample")
    parser.add_argument("transfers", nargs="+", type=Transfer.parse)
    options = parser.parse_args(arguments)
    rank = open_rank(options.overrides, cluster_name=options.cluster)
    steps_by_transfer = {transfer: transfer.steps(rank) for transfer in options.transfers}
    samples: dict[Transfer, list[dict[str, float]]] = {transfer: [] for transfer in steps_by_transfer}
    for number in range(1 + options.rounds):
        for transfer, steps in steps_by_transfer.items():
            step_ms = 1e3 * rank.time_between_s(steps, options.steps) / options.steps
            if number:
                samples[transfer].append({"step_ms": step_ms})
    for transfer, rounds in samples.items():
        write_samples(rank.parts.identity, transfer.name, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
