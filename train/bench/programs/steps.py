"""A rank that times steps, from memory or from JPEGs, and their parts; or sums alone; or what steps hide of them."""

import os
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from configs.load import load_both, load_cluster
from data.input.batches import TrainingBatch, TrainingSource
from data.input.synthetic import open_repeated
from train.bench.bench_overlap import SERIAL, plan_buckets
from train.bench.measure import turns
from train.bench.samples import write_samples
from train.comm.communicator import Communicator, SingleProcess, connector
from train.engine.protocol import open_engine
from train.plan.memory import estimate_memory
from train.probe import ProbedRank, allreduce_s, open_rank
from train.rank.identity import read_identity
from train.rank.startup import Ledger

_EVALUATIONS = 3
"""Batches of an evaluation for one sample."""

_SAMPLES = 4
"""Samples of a start, if the number of steps of each one is to follow from the time."""

_SAMPLE_BYTES, _MOST_IN_A_SAMPLE = 32 << 20, 20
"""A sample of a small buffer repeats its reduction until it has summed so much, or so often."""


def main(  # noqa: PLR0913 (the values of a task)
    recipe: str,
    overrides: Sequence[str],
    *,
    title: str = "steps",
    cluster: str = "laptop",
    warmup: int = 0,
    steps: int | None = None,
    seconds: float = 0.0,
    reads_images: bool = False,
    has_parts: bool = False,
    trains: bool = True,
) -> None:
    """Measure the milliseconds of a step and images/s; each sample is the mean of some steps.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster.
        title: Names the samples.
        cluster: A name or a file.
        warmup: Steps before the first sample.
        steps: Steps of a sample. If None, as many as take a quarter of the time.
        seconds: Time for samples; at least one is taken.
        reads_images: Take the images from the packed data set, instead of one batch from memory.
        has_parts: Also measure the warm-up and the first step, and in each sample the parts of a step and of an
            evaluation.
        trains: Take steps, instead of only the batches of ``reads_images``.
    """
    loaded, identity = load_both(recipe, cluster, overrides), read_identity(os.environ)
    rank = open_rank(*loaded, identity, reads_images=reads_images)
    batch = rank.random_batch()
    source = _Fetched(rank.open_images()) if reads_images else open_repeated(batch)
    start = {}
    if has_parts or rank.parts.cluster.engine.cuda_graphs != "none":  # which are captured after a step only
        start["warm_up_ms"] = 1e3 * rank.slowest_s(rank.warm_up)
    queue = rank.steps(source) if trains else lambda number: [source.next_batch() for _ in range(number)]
    if has_parts:
        start["first_step_ms"] = 1e3 * rank.slowest_s(lambda: queue(1))
        write_samples(identity, "start", [start])
    if warmup:
        rank.slowest_s(lambda: queue(warmup))
    number = steps or 1 + int(seconds / _SAMPLES / rank.slowest_s(lambda: queue(1)))
    samples: list[dict[str, float]] = []
    end = time.monotonic() + seconds
    # All ranks take as many samples as rank 0.
    while not samples or rank.parts.communicator.gather("go on", int(time.monotonic() < end))[0]:
        sample = _parts(rank, batch) if has_parts else {}
        fetched_s = source.taken_s if isinstance(source, _Fetched) else 0.0
        took_s = rank.slowest_s(lambda: queue(number))
        rate = rank.parts.plan.global_batch_size * number / took_s
        sample |= {"step_ms": 1e3 * took_s / number, "images_per_s": rate, **_memory(rank)}
        if isinstance(source, _Fetched):
            sample["input_wait_ms"] = 1e3 * (source.taken_s - fetched_s) / number
        samples.append(sample)
    source.close()
    write_samples(identity, title, samples)


class _Fetched:
    """A source of batches that adds up the seconds in which the host waits for them."""

    def __init__(self, source: TrainingSource) -> None:
        self._source, self.taken_s = source, 0.0
        self.begin_epoch, self.state, self.close = source.begin_epoch, source.state, source.close

    def next_batch(self) -> TrainingBatch:
        """See `TrainingSource`."""
        begin = time.perf_counter()
        batch = self._source.next_batch()
        self.taken_s += time.perf_counter() - begin
        return batch


def _parts(rank: ProbedRank, batch: TrainingBatch) -> dict[str, float]:
    """Return the milliseconds of forward, backward and update, one after another, and of the parts of an evaluation.

    Batch norm is folded once an evaluation.
    """
    passes_ms = {f"{name}_ms": 1e3 * rank.slowest_s(action) for name, action in rank.passes(batch).items()}
    network = rank.parts.model.network
    fold_s = rank.slowest_s(network.inference)
    infer = partial(network.inference(), batch.images)
    # The first time allocates memory.
    _, *evaluations_s = (rank.slowest_s(infer) for _ in range(1 + _EVALUATIONS))
    return {**passes_ms, "fold_ms": 1e3 * fold_s, "evaluation_ms": 1e3 * median(evaluations_s)}


def _memory(rank: ProbedRank) -> dict[str, float]:
    """Return what PyTorch took of a GPU's memory at most, and the plan's estimate of all but libraries and input."""
    parts = rank.parts
    if (parts.cluster.device, parts.cluster.engine.name) != ("gpu", "torch"):
        return {}
    import torch  # noqa: PLC0415 (other environments have none)

    estimate = estimate_memory(parts.recipe, parts.cluster, parts.plan)
    step = estimate.weights_bytes + estimate.gradients_bytes + estimate.optimizer_bytes + estimate.activations_bytes
    return {"memory_bytes": float(torch.cuda.max_memory_allocated()), "planned_bytes": float(step)}


def allreduce(cluster: str, overrides: Sequence[str], rounds: int, sizes: Sequence[int]) -> None:
    """Measure the milliseconds of one allreduce of each size, with one sample in each round.

    Args:
        cluster: A name or a file.
        overrides: Changes of the cluster.
        rounds: Rounds that count, after one that does not.
        sizes: Bytes of a rank's buffer, each.
    """
    place, identity = load_cluster(cluster, overrides), read_identity(os.environ)
    engine = open_engine(place, identity)
    communicator = connector(place.communication)(identity, Ledger())
    buffers = {size: engine.from_host(np.zeros(size // 4, np.float32)) for size in sizes}
    samples: dict[int, list[dict[str, float]]] = {size: [] for size in buffers}
    for _ in range(1 + rounds):
        for size, buffer in buffers.items():
            repeats = max(1, min(_MOST_IN_A_SAMPLE, _SAMPLE_BYTES // size))
            took_s = allreduce_s(engine, communicator, f"allreduce of {size}", buffer, repeats)
            samples[size].append({"allreduce_ms": 1e3 * took_s})
    for size, own in samples.items():
        write_samples(identity, str(size), own[1:])


def overlap(cluster: str, overrides: Sequence[str], rounds: int, buckets_bytes: Sequence[int]) -> None:
    """Measure the milliseconds of a step with each bucket plan, with one sample in each round.

    Args:
        cluster: A file that has the recipe and the cluster of a rehearsal.
        overrides: Changes of both.
        rounds: Rounds that count, after one that does not.
        buckets_bytes: Most bytes of a bucket, 0 for no communication; the samples are written under their numbers.
    """
    rank = open_rank(*load_both(cluster, cluster, overrides), read_identity(os.environ))
    parts, source, queues = rank.parts, open_repeated(rank.random_batch()), []
    for bucket_bytes in buckets_bytes:
        own = _Named(parts.communicator, f"{bucket_bytes}") if bucket_bytes else SingleProcess()
        _, buckets = plan_buckets(parts.recipe, parts.cluster, bucket_bytes or SERIAL)
        queues.append(rank.steps(source, own, buckets))
    network: Any = parts.model.network
    samples: list[list[dict[str, float]]] = [[] for _ in queues]
    for number, index in turns(range(len(queues)), 1 + rounds):
        network.summed_ranks = 1 if not buckets_bytes[index] else parts.identity.world_size
        step_ms = 1e3 * rank.slowest_s(partial(queues[index], 1))
        if number:
            samples[index].append({"step_ms": step_ms})
    for index, own_samples in enumerate(samples):
        write_samples(parts.identity, str(index), own_samples)


class _Named(SingleProcess):
    """Reduces under names of its own, because Horovod remembers the shape that belongs to a name."""

    def __init__(self, real: Communicator, prefix: str) -> None:
        self._real, self._prefix = real, prefix

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """See `Communicator`."""
        self._real.reduce(f"{self._prefix} {name}", arrays, priority)

    def complete(self) -> None:
        """See `Communicator`."""
        self._real.complete()
