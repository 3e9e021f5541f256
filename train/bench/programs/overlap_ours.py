"""One rank of ``bench overlap``: the same step with different transfers of the gradients, in turn."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from train.bench.bench_rank import BenchRank, open_rank, steps_of
from train.bench.measure import turns
from train.bench.samples import write_samples
from train.comm.buckets import BucketPlan, plan_buckets, plan_reductions
from train.comm.communicator import Communicator, SingleProcess
from train.engine.protocol import Engine
from train.engine.timed.network import TimedNetwork
from train.networks.arch import float32_gradients, gradient_bytes, network_of

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
        parts = rank.parts
        width = 4 if parts.cluster.engine.precision == "float32" else 2
        parameters = network_of(parts.recipe.model).parameters
        buckets = self.buckets(gradient_bytes(parameters, width), float32_gradients(parameters, width))
        queue = steps_of(rank, self._communicator(rank), buckets)
        network = parts.model.network
        if not isinstance(network, TimedNetwork):
            return queue

        def steps(number: int) -> Any:
            network.summed_ranks = 1 if self.when == NONE else parts.identity.world_size
            return queue(number)

        return steps

    def buckets(self, sizes: Sequence[int], apart: Collection[int] = ()) -> BucketPlan:
        """Return the buckets for gradients of these sizes in bytes; see `plan_reductions` for ``apart``."""
        if self.order == "last":
            return plan_reductions(sizes, self.bucket_bytes, self.deferred, apart)
        mirrored = plan_buckets(sizes[::-1], self.bucket_bytes)
        return BucketPlan(tuple(tuple(len(sizes) - 1 - index for index in bucket) for bucket in mirrored))

    def _communicator(self, rank: BenchRank) -> Communicator:
        if self.when == NONE:
            return SingleProcess()
        return _TransferCommunicator(rank.parts.communicator, rank.parts.engine, self)


class _TransferCommunicator(SingleProcess):
    """Reduces as one transfer says.

    Each transfer has names of its own for the reductions, because Horovod remembers the shape that belongs to a name.
    """

    def __init__(self, real: Communicator, engine: Engine, transfer: Transfer) -> None:
        self._real, self._engine, self._transfer = real, engine, transfer
        self._held: list[tuple[str, Sequence[Any], int]] = []

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """See `Communicator`."""
        name = f"{self._transfer.name} {name}"
        if self._transfer.when == SERIAL:
            self._held.append((name, arrays, priority))
        elif self._transfer.wire == "float32":
            self._real.reduce(name, arrays, priority)
        else:
            self._reduce_as_wire(name, arrays, priority)

    def complete(self) -> None:
        """See `Communicator`; a serial transfer waits for the end of backward and only now reduces."""
        if self._held:
            self._engine.wait_all()
        for held in self._held:
            self._real.reduce(*held)
        self._held.clear()
        self._real.complete()

    def _reduce_as_wire(self, name: str, arrays: Sequence[Any], priority: int) -> None:
        import mxnet as mx  # noqa: PLC0415 (slow)

        sent = [array.astype(self._transfer.wire) for array in arrays]
        self._real.reduce(name, sent, priority)
        for array, received in zip(arrays, sent, strict=True):
            mx.nd.cast(received, dtype="float32", out=array)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the milliseconds a step of each transfer, with one sample in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="imagenet-smoke")
    parser.add_argument("--cluster", default="laptop")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--rounds", type=int, required=True, help="rounds that count, after one that does not")
    parser.add_argument("--steps", type=int, required=True, help="steps of one sample")
    parser.add_argument("transfers", nargs="+", type=Transfer.parse)
    options = parser.parse_args(arguments)
    rank = open_rank(options.overrides, options.recipe, options.cluster)
    steps_by_transfer = {transfer: transfer.steps(rank) for transfer in options.transfers}
    samples: dict[Transfer, list[dict[str, float]]] = {transfer: [] for transfer in steps_by_transfer}
    for number, transfer in turns(list(steps_by_transfer), 1 + options.rounds):
        sample = _sample(rank, steps_by_transfer[transfer], options.steps)
        if number:
            samples[transfer].append(sample)
    for transfer, rounds in samples.items():
        write_samples(rank.parts.identity, transfer.name, rounds)
    return 0


def _sample(rank: BenchRank, steps: Callable[[int], Any], number: int) -> dict[str, float]:
    """Return the milliseconds a step, and those of processor time of all ranks together."""
    before = time.process_time()
    if rank.parts.cluster.rehearsal is None:
        # One more step goes before those that count, because on real arrays a step overlaps with the one before.
        step_s = rank.time_between_s(steps, number) / number
        number += 1
    else:
        step_s = rank.time_s(lambda: steps(number)) / number
    own_us = round(1e6 * (time.process_time() - before) / number)
    return {"step_ms": 1e3 * step_s, "processor_ms": sum(rank.parts.communicator.gather("processor", own_us)) / 1e3}


if __name__ == "__main__":
    sys.exit(main())
