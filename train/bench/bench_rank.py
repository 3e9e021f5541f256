"""What the ranks of the benches share: a rank as a run composes it, and work that all ranks time together."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from configs.load import load_both
from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch, TrainingSource
from data.input.synthetic import open_repeated, random_batch
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.compose import Composition, compose
from train.dataset import images_of
from train.engine.protocol import Array, Engine
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


@dataclass(frozen=True)
class BenchRank:
    """One rank, ready to train.

    Attributes:
        parts: The rank as a run composes it.
        batch: Random images and labels, which lie in memory.
    """

    parts: Composition
    batch: TrainingBatch

    def time_s(self, action: Callable[[], object]) -> float:
        """Return the seconds of an action, see `slowest_s`."""
        return slowest_s(self.parts.engine, self.parts.communicator, action)

    def images_per_s(self, steps: int, seconds: float) -> float:
        """Return the images a second that all ranks together train, from the seconds of some steps."""
        return self.parts.plan.global_batch_size * steps / seconds

    def steps(
        self,
        communicator: Communicator | None = None,
        buckets: BucketPlan | None = None,
        source: TrainingSource | None = None,
    ) -> Callable[[int], Array]:
        """Return a function that queues a number of steps and returns the last step's loss over all ranks.

        Args:
            communicator: Reduces the gradients. If None, the rank's own.
            buckets: The bucket plan. If None, the network's own.
            source: Where batches come from. If None, each one is the batch that lies in memory.
        """
        parts, batches = self.parts, source or open_repeated(self.batch)
        clock = Clock(parts.engine, parts.cluster.engine.run_ahead_steps)
        if parts.cluster.engine.cuda_graphs != "none":  # which are captured after a step only
            warm_up(parts.engine, parts.model, parts.communicator, parts.plan.per_rank_batch_size)
        step = parts.make_step(clock, lambda _: None, communicator=communicator, buckets=buckets)

        def queue(number: int) -> Array:
            return [step(0, batches, HYPER).summed for _ in range(number)][-1]

        return queue

    def open_images(self) -> TrainingSource:
        """Return the stream of the recipe's images; the rank was opened with ``reads_images``."""
        parts = self.parts
        source = images_of(parts.recipe, parts.cluster, parts.plan, parts.identity).open_training(parts.engine)
        source.begin_epoch(1)
        return source


def open_rank(
    recipe: str, overrides: Sequence[str], cluster: str = "laptop", *, reads_images: bool = False
) -> BenchRank:
    """Compose a rank of a recipe on a cluster, with one random batch.

    Args:
        recipe: A name or a file.
        overrides: Changes of recipe and cluster.
        cluster: A name or a file.
        reads_images: Also prepare for `BenchRank.open_images`.
    """
    if reads_images:
        import data.input.pipeline  # noqa: F401 (DALI before Horovod: `train.dataset` explains it)
    loaded = load_both(recipe, cluster, overrides)
    parts = compose(*loaded, read_identity(os.environ), Ledger())
    size, network = parts.plan.per_rank_batch_size, parts.model.network
    shapes = (size, *network.image_shape), (size, *network.label_shape)
    return BenchRank(parts, random_batch(parts.engine, *shapes, loaded[0].model.num_classes))


def slowest_s(engine: Engine, communicator: Communicator, action: Callable[[], object]) -> float:
    """Return the seconds of an action and everything it queues.

    The time runs from the moment at which all ranks have met to the end of the slowest rank's work.
    """
    engine.wait_all()
    communicator.gather("begin", 0)
    begin = time.perf_counter()
    action()
    engine.wait_all()
    return max(communicator.gather("took", round(1e9 * (time.perf_counter() - begin)))) / 1e9


def peak_operations_per_s(rank: BenchRank) -> float:
    """Return the operations a second of all ranks together if each one only computes products of matrices."""
    engine, identity = rank.parts.engine, rank.parts.identity
    left, right = map(engine.from_host, np.random.default_rng(0).standard_normal((2, _SIDE, _SIDE), np.float32))

    def multiply(number: int) -> None:
        for _ in range(number):
            engine.wait(engine.product(left, right))

    begin = time.perf_counter()
    multiply(2)
    fitting = 1 + round(2 * _PEAK_S / (time.perf_counter() - begin))
    number = max(rank.parts.communicator.gather("repeats", fitting))
    return 2 * _SIDE**3 * identity.world_size * number / rank.time_s(lambda: multiply(number))
