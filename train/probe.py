"""A rank whose work is timed part by part: a rank as a run composes it, for the benches and the doctor."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from configs.optimizers import HyperParameters
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from data.input.batches import TrainingBatch, TrainingSource
from data.input.synthetic import random_batch
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator, Connect, SingleProcess
from train.compose import Composition, compose
from train.dataset import Images, images_of
from train.engine.init import checksum
from train.engine.protocol import Array, Engine
from train.measure.timing import Clock
from train.rank.identity import Identity
from train.rank.startup import Ledger
from train.warmup import warm_up

_HYPER = HyperParameters(lr=0.0, momentum=0.9, weight_decay=1e-4)
"""Without a rate, the network does not overfit to a constant batch, which would produce denormal numbers."""

_ALONE_STEPS = 20
"""On two cores, 20 steps of digits take 1 to 2 s."""

_ALONE_HYPER = HyperParameters(lr=0.01, momentum=0.9, weight_decay=1e-4)
"""A rate at which every shipped optimizer moves the weights, and none of them makes them infinite, in so few steps."""


@dataclass(frozen=True)
class ProbedRank:
    """One rank, ready to train.

    Attributes:
        parts: The rank as a run composes it.
        images: Opens the recipe's images.
    """

    parts: Composition
    images: Images

    def random_batch(self) -> TrainingBatch:
        """Return a micro-batch of random images and labels, which lies in memory."""
        size, network = self.parts.plan.per_rank_batch_size, self.parts.model.network
        shapes = (size, *network.image_shape), (size, *network.label_shape)
        classes = self.parts.recipe.model.num_classes
        return random_batch(self.parts.engine, *shapes, classes, self.parts.model.image_type)

    def open_images(self) -> TrainingSource:
        """Return the stream of the recipe's images."""
        self.images.load()
        source = self.images.open_training(self.parts.engine)
        source.begin_epoch(1)
        return source

    def warm_up(self) -> None:
        """Warm up as a run does, see `train.warmup.warm_up`."""
        warm_up(self.parts.model, self.parts.communicator, self.parts.plan.per_rank_batch_size)

    def passes(self, batch: TrainingBatch) -> dict[str, Callable[[], object]]:
        """Return the functions that queue the forward pass of a micro-batch, the backward pass and the update."""
        network, optimizer = self.parts.model.network, self.parts.model.optimizer
        return {
            "forward": lambda: network.forward(*batch),
            "backward": network.backward,
            "update": lambda: optimizer.update(_HYPER),
        }

    def steps(
        self, source: TrainingSource, communicator: Communicator | None = None, buckets: BucketPlan | None = None
    ) -> Callable[[int], Array]:
        """Return a function that queues a number of steps and returns the last step's loss over all ranks.

        Args:
            source: Where batches come from.
            communicator: Reduces the gradients. If None, the rank's own.
            buckets: The bucket plan. If None, the network's own.
        """
        clock = Clock(self.parts.engine, self.parts.cluster.engine.run_ahead_steps)
        step = self.parts.make_step(clock, lambda _: None, communicator=communicator, buckets=buckets)
        return lambda number: [step(0, source, _HYPER).summed for _ in range(number)][-1]

    def slowest_s(self, action: Callable[[], object]) -> float:
        """Return the seconds of an action, see the function `slowest_s`."""
        return slowest_s(self.parts.engine, self.parts.communicator, action)


def open_rank(
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    *,
    connect: Connect | None = None,
    reads_images: bool = False,
) -> ProbedRank:
    """Compose a rank.

    Args:
        recipe: The recipe.
        cluster: The cluster.
        identity: This rank.
        connect: Makes the communicator. If None, as the cluster file says.
        reads_images: Import what reads images before the communicator's library, as `train.dataset` demands.
    """
    plan = plan_run(recipe, identity.world_size)
    images = images_of(recipe, cluster, plan, identity)
    if reads_images:
        images.load()
    return ProbedRank(compose(recipe, cluster, identity, Ledger(), plan=plan, connect=connect), images)


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


def allreduce_s(engine: Engine, communicator: Communicator, name: str, array: Array, repeats: int = 1) -> float:
    """Return the seconds that the slowest rank takes for the sum of an array over all ranks, the mean of ``repeats``.

    Args:
        engine: The framework, on this rank's device.
        communicator: Connects the ranks.
        name: Name of the reduction; communicators keep the buffers of a name.
        array: Summed in place.
        repeats: Sums of one measurement, one after another; a small one takes less time than the ranks need to meet.
    """

    def reduce() -> None:
        for _ in range(repeats):
            communicator.reduce(name, [array])
            communicator.complete()
            engine.wait_all()

    return slowest_s(engine, communicator, reduce) / repeats


def train_alone(recipe: Recipe, cluster: Cluster, identity: Identity) -> tuple[int, bool]:
    """Train from the recipe's seed, as the only rank of a world, to find out whether a rank's arithmetic is right.

    Args:
        recipe: Its images are synthetic, and its global batch is that of one rank.
        cluster: Has ``engine.deterministic``.
        identity: This rank; its number has no part in the training, its device has.

    Returns:
        A checksum, and whether all weights are finite. The checksum is of gradients, weights and momenta of every step,
        because an update rounds most wrong bits of a gradient away, and of the statistics at the end.
    """
    single = replace(identity, rank=0, world_size=1)
    rank = open_rank(recipe, cluster, single, connect=lambda *_: SingleProcess())
    engine, network, source = rank.parts.engine, rank.parts.model.network, rank.open_images()
    step = rank.parts.make_step(Clock(engine, cluster.engine.run_ahead_steps), lambda _: None)
    digests = []
    for number in range(_ALONE_STEPS):
        step(number, source, _ALONE_HYPER)
        state = (*network.gradients, *network.masters, *rank.parts.model.optimizer.momenta)
        digests.append(np.array(engine.digests(state), np.uint64))
    source.close()
    steps = [(f"step {number}", row) for number, row in enumerate(digests)]
    return checksum([*steps, *network.read_statistics().items()]), engine.first_not_finite(network.masters) is None
