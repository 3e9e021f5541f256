"""What the programs of the benches share: a rank as a run composes it, and steps that all ranks time together."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from configs.load import load_both
from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch, TrainingSource
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.compose import Composition, compose
from train.engine.protocol import Array
from train.measure.timing import Clock
from train.rank.identity import read_identity
from train.rank.startup import Ledger
from train.warmup import warm_up

HYPER = HyperParameters(lr=1e-4, momentum=0.9, weight_decay=1e-4)
"""Rates so small that the network does not learn a constant batch by heart, which would produce denormal numbers."""

_SIDE = 1536
"""Side of the square matrices of the product that measures the peak: 28 MB in all, 7 billion operations."""

_PEAK_S = 0.5
"""Seconds that the measurement of the peak takes, about."""

_COPIED_BYTES = 64 << 20
"""Bytes of the array whose copies measure the bandwidth of the memory; no cache holds it."""


@dataclass(frozen=True)
class BenchRank:
    """One rank, ready to train on one batch that lies in memory; also the source of that batch.

    Attributes:
        parts: The rank as a run composes it.
        batch: Random images and labels.
    """

    parts: Composition
    batch: TrainingBatch

    def begin_epoch(self, epoch: int) -> None:
        """See `TrainingSource`."""

    def next_batch(self) -> TrainingBatch:
        """Return the batch."""
        return self.batch

    def state(self) -> bytes:
        """See `TrainingSource`."""
        return b""

    def close(self) -> None:
        """See `TrainingSource`."""

    def time_s(self, action: Callable[[], object]) -> float:
        """Return the seconds of an action and everything it queues.

        The time runs from the moment at which all ranks have met to the end of the slowest rank's work.
        """
        self.barrier()
        begin = time.perf_counter()
        action()
        self.parts.engine.wait_all()
        return self._slowest_s(time.perf_counter() - begin)

    def time_between_s(self, steps: Callable[[int], Array], number: int) -> float:
        """Return the seconds of ``number`` steps in the middle of others.

        Args:
            steps: A function as `steps_of` returns it.
            number: Steps from the loss of one step to the loss of the last step that is timed.
        """
        engine = self.parts.engine
        self.barrier()
        engine.wait(steps(1))
        begin = time.perf_counter()
        engine.wait(steps(number))
        seconds = time.perf_counter() - begin
        # A process that ends while reductions are under way may never end.
        engine.wait_all()
        return self._slowest_s(seconds)

    def barrier(self) -> None:
        """Wait until every rank has finished its work."""
        self.parts.engine.wait_all()
        self.parts.communicator.gather("begin", 0)

    @contextmanager
    def reading_steps(self) -> Iterator[Callable[[int], Array]]:
        """Yield a function as `steps_of` returns it, whose batches are read from the recipe's images."""
        from train.dataset import images_of

        parts = self.parts
        source = images_of(parts.recipe, parts.cluster, parts.plan, parts.identity).open_training(parts.engine)
        source.begin_epoch(1)
        yield steps_of(self, source=source)
        source.close()

    def _slowest_s(self, seconds: float) -> float:
        return max(self.parts.communicator.gather("took", round(1e9 * seconds))) / 1e9


def open_rank(
    overrides: Sequence[str],
    recipe_name: str = "imagenet-smoke",
    cluster_name: str = "laptop",
    *,
    reads_images: bool = False,
) -> BenchRank:
    """Compose a rank of a recipe with ``overrides`` on a cluster, with one random batch.

    Args:
        overrides: Changes of both.
        recipe_name: A name or a file.
        cluster_name: A name or a file.
        reads_images: Also prepare for `BenchRank.reading_steps`.
    """
    if reads_images:
        import data.input.pipeline  # noqa: F401 (DALI before Horovod: `train.dataset` explains it)
    recipe, cluster = load_both(recipe_name, cluster_name, overrides)
    parts = compose(recipe, cluster, read_identity(os.environ), Ledger())
    size = parts.plan.per_rank_batch_size
    images = np.random.default_rng(0).standard_normal((size, *parts.model.network.image_shape), np.float32)
    labels = np.arange(size, dtype=np.float32) % recipe.model.num_classes
    return BenchRank(parts, TrainingBatch(parts.engine.from_host(images), parts.engine.from_host(labels)))


def steps_of(
    rank: BenchRank,
    communicator: Communicator | None = None,
    buckets: BucketPlan | None = None,
    source: TrainingSource | None = None,
) -> Callable[[int], Array]:
    """Return a function that queues a number of steps and returns the last step's loss over all ranks.

    Args:
        rank: Has network and optimizer.
        communicator: Reduces the gradients. If None, the rank's own.
        buckets: The bucket plan. If None, the network's own.
        source: Where batches come from. If None, the rank's one batch.
    """
    parts = rank.parts
    clock = Clock(parts.engine, parts.cluster.engine.run_ahead_steps)
    if parts.cluster.engine.cuda_graphs != "none":  # which are captured after a step only
        warm_up(parts.engine, parts.model, parts.communicator, parts.plan.per_rank_batch_size)
    step = parts.make_step(clock, lambda _: None, communicator=communicator, buckets=buckets)

    def steps(number: int) -> Array:
        return [step(0, source or rank, HYPER).summed for _ in range(number)][-1]

    return steps


def peak_operations_per_s(rank: BenchRank) -> float:
    """Return the operations a second of all ranks together if each one only computes products of matrices."""
    engine = rank.parts.engine
    left, right = np.random.default_rng(0).standard_normal((2, _SIDE, _SIDE), np.float32)
    left, right = engine.from_host(left), engine.from_host(right)
    return 2 * _SIDE**3 * _repeats_per_s(rank, lambda: engine.wait(engine.product(left, right)))


def copied_bytes_per_s(rank: BenchRank) -> float:
    """Return the bytes a second that all ranks together read and write if each one only copies a large array."""
    engine = rank.parts.engine
    array = engine.zeros((_COPIED_BYTES // 4,))
    target = engine.zeros((_COPIED_BYTES // 4,))
    return 2 * _COPIED_BYTES * _repeats_per_s(rank, lambda: engine.overwrite(target, array))


def _repeats_per_s(rank: BenchRank, action: Callable[[], object]) -> float:
    """Return how often a second all ranks together do something, if each one does nothing else."""

    def repeat(number: int) -> None:
        for _ in range(number):
            action()
        rank.parts.engine.wait_all()

    begin = time.perf_counter()
    repeat(2)
    number = max(rank.parts.communicator.gather("repeats", 1 + round(2 * _PEAK_S / (time.perf_counter() - begin))))
    return rank.parts.identity.world_size * number / rank.time_s(lambda: repeat(number))
