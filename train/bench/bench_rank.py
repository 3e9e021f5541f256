"""What the programs of a bench have in common: a rank as a run has it, steps timed together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from configs.load import load_both
from configs.plan import RunPlan, plan_run
from configs.schema import Cluster, Recipe
from data.input.batches import TrainingBatch, TrainingSource
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator, bring_up
from train.engine.mxnet.build import Model, build_model
from train.loop import Step
from train.measure.timing import NoClock
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.schedule import HyperParameters

__all__ = ["HYPER", "Rank", "open_rank", "steps_of"]

HYPER = HyperParameters(lr=1e-4, momentum=0.9, weight_decay=1e-4)
"""Small enough that a constant batch is not learnt by heart, which would make denormal numbers."""


@dataclass(frozen=True)
class Rank:
    """One rank, ready to train on one batch that lies in memory."""

    identity: Identity
    recipe: Recipe
    cluster: Cluster
    plan: RunPlan
    communicator: Communicator
    model: Model
    batch: TrainingBatch

    def begin_epoch(self, epoch: int) -> None:
        """See `TrainingSource`."""

    def next_batch(self) -> TrainingBatch:
        """Give the batch."""
        return self.batch

    def state(self) -> bytes:
        """See `TrainingSource`."""
        return b""

    def close(self) -> None:
        """See `TrainingSource`."""

    def time_s(self, action: Callable[[], object]) -> float:
        """Time an action and all that it queues: from when all ranks are here to when the slowest is done."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        self._meet()
        begin = time.perf_counter()
        action()
        mx.nd.waitall()
        return self._slowest_s(time.perf_counter() - begin)

    def time_between_s(self, steps: Callable[[int], Any], number: int) -> float:
        """Time steps of `steps_of` amid others: from the loss of one to that of the ``number``-th after it."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        self._meet()
        steps(1).wait_to_read()
        begin = time.perf_counter()
        steps(number).wait_to_read()
        seconds = time.perf_counter() - begin
        # A process that ends while reductions are under way may never end.
        mx.nd.waitall()
        return self._slowest_s(seconds)

    def _meet(self) -> None:
        import mxnet as mx  # noqa: PLC0415 (slow)

        mx.nd.waitall()
        self.communicator.gather("begin", 0)

    def _slowest_s(self, seconds: float) -> float:
        return max(self.communicator.gather("took", round(1e9 * seconds))) / 1e9


def open_rank(overrides: Sequence[str], recipe_name: str = "imagenet-smoke") -> Rank:
    """Build the network of a recipe with ``overrides``, and join the other ranks."""
    import mxnet as mx  # noqa: PLC0415

    recipe, cluster = load_both(recipe_name, "laptop", overrides)
    identity = read_identity(os.environ)
    plan = plan_run(recipe, identity.world_size)
    communicator = bring_up(identity, Ledger()).wait()
    model = build_model(recipe, cluster, plan, identity)
    size = (plan.per_rank_batch_size, recipe.model.input_channels, recipe.model.image_size, recipe.model.image_size)
    images = mx.nd.random.normal(shape=size, ctx=model.context)
    labels = mx.nd.arange(size[0], ctx=model.context) % recipe.model.num_classes
    return Rank(identity, recipe, cluster, plan, communicator, model, TrainingBatch(images, labels))


def steps_of(
    rank: Rank, communicator: Communicator, buckets: BucketPlan, source: TrainingSource | None = None
) -> Callable[[int], Any]:
    """Give a function that queues that many steps of a run's own kind, on the rank's batch or on a source's.

    It gives the last one's loss over all ranks, which comes back with the first of its gradients.
    """
    model, run_ahead = rank.model, rank.cluster.engine.run_ahead_steps
    step = Step(model.network, model.optimizer, communicator, buckets, 1, NoClock(run_ahead), alive=lambda _: None)

    def steps(number: int) -> Any:
        return [step(0, source or rank, HYPER).summed for _ in range(number)][-1]

    return steps
