"""One rank of ``bench overlap``: the same step with different transfers of the gradients, in turn."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from train.bench.bench_overlap import NONE, SERIAL, Transfer
from train.bench.bench_rank import BenchRank, open_rank, steps_of
from train.bench.measure import turns
from train.bench.samples import run_task, write_samples
from train.comm.communicator import Communicator, SingleProcess
from train.engine.protocol import Engine
from train.engine.timed.network import TimedNetwork
from train.networks.arch import float32_gradients, gradient_bytes, network_of


def main(
    recipe: str, cluster: str, overrides: Sequence[str], rounds: int, steps: int, transfers: Sequence[str]
) -> None:
    """Measure the milliseconds a step of each transfer, with one sample in each round.

    Args:
        recipe: A name or a file.
        cluster: A name or a file.
        overrides: Changes of both.
        rounds: Rounds that count, after one that does not.
        steps: Steps of one sample.
        transfers: Names of `Transfer`.
    """
    rank = open_rank(overrides, recipe, cluster)
    steps_by_transfer = {transfer: transfer_steps(rank, transfer) for transfer in map(Transfer.parse, transfers)}
    samples: dict[Transfer, list[dict[str, float]]] = {transfer: [] for transfer in steps_by_transfer}
    for number, transfer in turns(list(steps_by_transfer), 1 + rounds):
        sample = _sample(rank, steps_by_transfer[transfer], steps)
        if number:
            samples[transfer].append(sample)
    for transfer, own in samples.items():
        write_samples(rank.parts.identity, transfer.name, own)


def transfer_steps(rank: BenchRank, transfer: Transfer) -> Callable[[int], Any]:
    """Return a function that queues a number of steps with a transfer of their gradients, as `steps_of` does."""
    parts = rank.parts
    width = 4 if parts.cluster.engine.precision == "float32" else 2
    parameters = network_of(parts.recipe.model).parameters
    buckets = transfer.buckets(gradient_bytes(parameters, width), float32_gradients(parameters, width))
    is_alone = transfer.when == NONE
    own = SingleProcess() if is_alone else TransferCommunicator(parts.communicator, parts.engine, transfer)
    queue = steps_of(rank, own, buckets)
    network = parts.model.network
    if not isinstance(network, TimedNetwork):
        return queue

    def steps(number: int) -> Any:
        network.summed_ranks = 1 if is_alone else parts.identity.world_size
        return queue(number)

    return steps


class TransferCommunicator(SingleProcess):
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
    run_task(main)
