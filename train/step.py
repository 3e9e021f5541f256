"""One optimizer step: forward and backward of every micro-batch, reductions, update. Names no framework."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from configs.ideas.part import Part
from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch, TrainingSource
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.engine.build import ModelParts
from train.engine.protocol import Array, Engine, Optimizer, TrainableNetwork
from train.measure.timing import Clock


class StepArrays(NamedTuple):
    """Results of a queued step, arrays of shape (1,).

    Attributes:
        own: Sum of the losses of this rank's images.
        summed: Sum of the losses of all ranks' images.
        stops: Number of ranks that were told to stop.
        skipped: Whether the update was skipped, 1 or 0. None: no update is ever skipped.
    """

    own: Array
    summed: Array
    stops: Array
    skipped: Array | None = None


@dataclass
class Step:
    """The parts of an optimizer step, none of which change from step to step.

    Attributes:
        engine: The framework.
        network: The network with its loss.
        optimizer: Updates the network's weights.
        communicator: Reduces the gradients.
        buckets: Which gradients are reduced together, and in which order.
        accumulation_steps: Micro-batches per step.
        clock: Measures the step.
        on_step: Called with the step's number when the step is queued.
        layer_seed: Returns the seed from which layers draw in a step, so that a step does not depend on earlier ones.
        told_to_stop: Returns whether this rank was told to stop.
        parts: What the recipe's ideas compute.
    """

    engine: Engine
    network: TrainableNetwork
    optimizer: Optimizer
    communicator: Communicator
    buckets: BucketPlan
    accumulation_steps: int
    clock: Clock
    on_step: Callable[[int], object]
    layer_seed: Callable[[int], int] = lambda step: step
    told_to_stop: Callable[[], bool] = lambda: False
    parts: Sequence[Part] = ()

    def __call__(self, step: int, source: TrainingSource, hyper: HyperParameters) -> StepArrays:
        """Queue a step; nothing here waits, unless the framework computes at once."""
        network, gradients = self.network, self.network.gradients
        own = self._forward(step, source)
        arrays = StepArrays(own, self.engine.copy(own), self.engine.flag(own, is_set=self.told_to_stop()))
        network.backward(self._reducer(arrays, partial(self.clock.first_layer_arrived, step, gradients[0])))
        with self.clock.reductions(gradients):
            self.communicator.complete()
        self._change_gradients()
        arrays = arrays._replace(skipped=self.optimizer.update(hyper))
        self._finish(step, arrays)
        return arrays

    def _change_gradients(self) -> None:
        """Queue what the ideas do to the summed gradients."""
        for part in self.parts:
            part.gradients(self.network.gradients)

    def _finish(self, step: int, arrays: StepArrays) -> None:
        """Queue what follows the update; exchange, measure and report the step."""
        for part in self.parts:
            part.updated(step)
        self.communicator.exchange()
        self.clock.step_queued(arrays.summed)
        self.on_step(step)

    def _forward(self, step: int, source: TrainingSource) -> Array:
        """Queue all micro-batches but the last one's backward pass; return the sum of this rank's losses."""
        self.network.seed(self.layer_seed(step))
        if self.accumulation_steps > 1:
            self.network.zero_gradients()
        own: Any = 0
        for number in range(self.accumulation_steps):
            if number:
                self.network.backward()
            own = self.network.forward(*self._next_batch(step, number, source)) + own
        return own

    def _next_batch(self, step: int, number: int, source: TrainingSource) -> TrainingBatch:
        """Return a micro-batch as the network shall see it."""
        with self.clock.input():
            batch = source.next_batch()
        for part in self.parts:
            batch = part.batch(step, number, batch)
        return batch

    def _reducer(
        self, arrays: StepArrays, first_layer_arrived: Callable[[], None] = lambda: None
    ) -> Callable[[int], None]:
        """Return the function that takes note of a complete gradient and queues the buckets that are complete.

        Buckets are queued in the plan's order, the same on every rank, although a later bucket may be complete first.
        """
        buckets = self.buckets
        missing = {number: set(bucket) for number, bucket in enumerate(buckets.order)}
        bucket_of = {index: number for number, bucket in enumerate(buckets.order) for index in bucket}
        # Every deferred reduction writes this array, so an engine with dependencies runs them one after another.
        order = self.engine.flag(arrays.own, is_set=False) if buckets.num_deferred else None

        def arrived(index: int) -> None:
            if index == 0:
                first_layer_arrived()
            missing[bucket_of[index]].remove(index)
            while missing and not missing[number := min(missing)]:
                del missing[number]
                _reduce(self.communicator, self.network, buckets, number, arrays, order)

        return arrived


def reduce_once(model: ModelParts, communicator: Communicator) -> None:
    """Queue the reductions of a step, with blank arrays beside the gradients, under the names that steps use.

    Communicators keep the buffers and connections of a name.
    """
    blank = StepArrays(*(model.network.engine.zeros((1,)) for _ in range(3)))
    reduce_all(model.network, communicator, model.buckets, blank)


def reduce_all(network: TrainableNetwork, communicator: Communicator, buckets: BucketPlan, arrays: StepArrays) -> None:
    """Queue the reductions of a step whose gradients are complete."""
    order = network.engine.copy(arrays.own) if buckets.num_deferred else None
    for number in range(len(buckets.order)):
        _reduce(communicator, network, buckets, number, arrays, order)


def _reduce(
    communicator: Communicator,
    network: TrainableNetwork,
    buckets: BucketPlan,
    number: int,
    arrays: StepArrays,
    order: Array | None,
) -> None:
    """Queue the reduction of a bucket.

    The loss and the stop flag travel with a float32 bucket, which saves a separate allreduce.
    """
    riders = [arrays.summed, arrays.stops] if number == buckets.riders else []
    if order is not None and number >= buckets.last_prompt:
        riders.append(order)
    gradients = [network.gradients[index] for index in buckets.order[number]]
    communicator.reduce(f"bucket_{number}", [*gradients, *riders], -number)
