"""One rank of ``bench overlap``: the same step with different transfers of the gradients, in turn."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from configs.load import load_both
from data.input.batches import TrainingSource
from data.input.synthetic import open_repeated
from train.bench.bench_overlap import NONE, OVERLAPPED, Transfer, plan_buckets
from train.bench.measure import turns
from train.bench.samples import write_samples
from train.comm.communicator import Communicator, SingleProcess
from train.engine.protocol import Engine
from train.probe import ProbedRank, open_rank
from train.rank.identity import read_identity


def main(cluster: str, overrides: Sequence[str], rounds: int, steps: int, transfers: Sequence[Transfer]) -> None:
    """Measure the milliseconds a step of each transfer, with one sample in each round.

    Args:
        cluster: A file that has the recipe and the cluster of a rehearsal.
        overrides: Changes of both.
        rounds: Rounds that count, after one that does not.
        steps: Steps of one sample.
        transfers: The transfers; their samples are written under their numbers.
    """
    rank = open_rank(*load_both(cluster, cluster, overrides), read_identity(os.environ))
    source = open_repeated(rank.random_batch())
    queues = [transfer_steps(rank, source, *transfer) for transfer in transfers]
    samples: list[list[dict[str, float]]] = [[] for _ in queues]
    for number, index in turns(range(len(queues)), 1 + rounds):
        step_ms = 1e3 * rank.slowest_s(partial(queues[index], steps)) / steps
        if number:
            samples[index].append({"step_ms": step_ms})
    for index, own in enumerate(samples):
        write_samples(rank.parts.identity, str(index), own)


def transfer_steps(rank: ProbedRank, source: TrainingSource, when: str, bucket_bytes: int) -> Callable[[int], Any]:
    """Return a function as that of `ProbedRank.steps`, with a transfer of the gradients."""
    parts = rank.parts
    _, buckets = plan_buckets(parts.recipe, parts.cluster, bucket_bytes)
    own = (
        SingleProcess() if when == NONE else TransferCommunicator(parts.communicator, parts.engine, when, bucket_bytes)
    )
    network: Any = parts.model.network
    queue = rank.steps(source, own, buckets)

    def steps(number: int) -> Any:
        network.summed_ranks = 1 if when == NONE else parts.identity.world_size
        return queue(number)

    return steps


class TransferCommunicator(SingleProcess):
    """Reduces as one transfer says.

    Each transfer has names of its own for the reductions, because Horovod remembers the shape that belongs to a name.
    """

    def __init__(self, real: Communicator, engine: Engine, when: str, bucket_bytes: int) -> None:
        self._real, self._engine, self._when, self._prefix = real, engine, when, f"{when} {bucket_bytes}"
        self._held: list[tuple[str, Sequence[Any], int]] = []

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """See `Communicator`."""
        self._held.append((f"{self._prefix} {name}", arrays, priority))
        if self._when == OVERLAPPED:
            self._send()

    def complete(self) -> None:
        """See `Communicator`; a serial transfer waits for the end of backward and only now reduces."""
        if self._held:
            self._engine.wait_all()
        self._send()
        self._real.complete()

    def _send(self) -> None:
        for held in self._held:
            self._real.reduce(*held)
        self._held.clear()
