"""One optimizer step: forward and backward of every micro-batch, reductions, update. Names no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from configs.optimizers import HyperParameters
from data.input.batches import TrainingSource
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.engine.protocol import Array, Engine, Optimizer, Trainee
from train.measure.timing import Clock

__all__ = ["Step", "StepArrays"]


class StepArrays(NamedTuple):
    """Results of a queued step, arrays of shape (1,).

    Attributes:
        own: Sum of the losses of this rank's images.
        summed: Sum of the losses of all ranks' images.
        stops: Number of ranks that were told to stop.
    """

    own: Array
    summed: Array
    stops: Array


def _first_dropout_seed(step: int) -> int:
    return step


def _never_told_to_stop() -> bool:
    return False


@dataclass(frozen=True)
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
        dropout_seed: Returns the seed of a step's dropout, so that a step does not depend on earlier ones.
        told_to_stop: Returns whether this rank was told to stop.
    """

    engine: Engine
    network: Trainee
    optimizer: Optimizer
    communicator: Communicator
    buckets: BucketPlan
    accumulation_steps: int
    clock: Clock
    on_step: Callable[[int], object]
    dropout_seed: Callable[[int], int] = _first_dropout_seed
    told_to_stop: Callable[[], bool] = _never_told_to_stop

    def __call__(self, step: int, source: TrainingSource, hyper: HyperParameters) -> StepArrays:
        """Queue a step; nothing here waits for the engine."""
        own = self._forward_backward(step, source)
        gradients = self.network.gradients
        self.clock.backward_queued(step, gradients)
        arrays = StepArrays(own, self.engine.copy(own), self.engine.flag(own, is_set=self.told_to_stop()))
        self._reduce(arrays)
        self.optimizer.update(hyper)
        self.communicator.exchange()
        self.clock.step_queued(arrays.summed, gradients)
        self.on_step(step)
        return arrays

    def _forward_backward(self, step: int, source: TrainingSource) -> Array:
        """Queue forward and backward of every micro-batch and return the sum of this rank's losses."""
        self.network.seed_dropout(self.dropout_seed(step))
        if self.accumulation_steps > 1:
            self.network.zero_gradients()
        own: Any = 0
        for _ in range(self.accumulation_steps):
            with self.clock.input():
                images, labels = source.next_batch()
            own = self.network.forward_backward(images, labels) + own
        return own

    def _reduce(self, arrays: StepArrays) -> None:
        """Queue the reduction of every bucket.

        The loss and the stop flag travel with bucket 0, which saves a separate allreduce. Deferred buckets share one
        more array: every reduction writes it, so the engine runs these reductions one after another.
        """
        gradients, buckets = self.network.gradients, self.buckets
        order = self.engine.flag(arrays.own, is_set=False) if buckets.num_deferred else None
        for number, bucket in enumerate(buckets.order):
            riders = [arrays.summed, arrays.stops] if number == 0 else []
            if order is not None and number >= buckets.last_prompt:
                riders.append(order)
            self.communicator.reduce(f"bucket_{number}", [*(gradients[i] for i in bucket), *riders], -number)
