"""Steps and inferences that a GPU can replay as CUDA graphs: the same work on the same arrays. Names no framework.

A graph repeats kernels with the addresses and the numbers that they had when it was captured. So every batch is copied
into fixed arrays, the numbers of a step lie on the device, and its results are fixed arrays, too. Where the
engine has no graphs, as on a CPU, the same work is queued anew in each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch, TrainingSource
from train.engine.protocol import Array, FixedOptimizer, TrainableNetwork, Work
from train.step import Step, StepArrays, reduce_all


@dataclass(kw_only=True)
class StaticStep(Step):
    """A `Step` on fixed arrays; the weights after it are those after a `Step`.

    Its parts are captured when it is made, and nothing is computed then, if the device has graphs. A step of these
    shapes and types must have been computed before, because libraries choose their algorithms then.

    Attributes:
        batches: Arrays for a micro-batch of each shape, in the type of the images; the largest comes first, and its
            graphs' memory has room for the others.
        has_sums: Whether the allreduces are captured, within the backward pass. If not, they follow it, and nothing
            hides them.
    """

    optimizer: FixedOptimizer
    batches: Sequence[TrainingBatch]
    has_sums: bool

    def __post_init__(self) -> None:
        # Made before the capture: a graph that made them would set them to 0 in every replay.
        self._zero, *results = (self.engine.zeros((1,)) for _ in ("zero", *StepArrays._fields))
        self._arrays = StepArrays(*results)
        self._captured = {batch.images.shape: (batch, *self._capture(batch)) for batch in self.batches}
        self._captured_update = None if self.has_sums else self.engine.capture(self._update)

    def _capture(self, batch: TrainingBatch) -> tuple[Work, Work]:
        """Return forward and backward of a micro-batch that others follow, and of the last one of a step.

        With the allreduces inside, the last one also has the rest of the step.
        """
        capture, compute = self.engine.capture, partial(self._compute, batch)
        if self.has_sums:
            last = capture(partial(self._compute_and_update, batch))
            return capture(compute) if self.accumulation_steps > 1 else last, last
        each = capture(compute)
        return each, each

    def _compute(self, batch: TrainingBatch) -> None:
        self._add_loss(batch)
        self.network.backward()

    def _compute_and_update(self, batch: TrainingBatch) -> None:
        self._add_loss(batch)
        self.engine.overwrite(self._arrays.summed, self._arrays.own)
        self.network.backward(self._reducer(self._arrays))
        self.communicator.complete()
        self._update()

    def _add_loss(self, batch: TrainingBatch) -> None:
        own = self._arrays.own
        self.engine.overwrite(own, self.network.forward(*batch) + own)

    def _update(self) -> None:
        self._change_gradients()
        skipped = self.optimizer.apply()
        if skipped is not None:
            self.engine.overwrite(self._arrays.skipped, skipped)

    def __call__(self, step: int, source: TrainingSource, hyper: HyperParameters) -> StepArrays:
        """Queue a step; see `Step`."""
        engine, arrays = self.engine, self._arrays
        engine.overwrite(arrays.own, self._zero)
        engine.overwrite(arrays.stops, engine.flag(arrays.stops, is_set=self.told_to_stop()))
        self.optimizer.hold(hyper)
        if self.accumulation_steps > 1:
            self.network.zero_gradients()
        for number in range(self.accumulation_steps):
            images, labels = self._next_batch(step, number, source)
            batch, earlier, last = self._captured[images.shape]
            engine.overwrite(batch.images, images)
            engine.overwrite(batch.labels, labels)
            (last if number + 1 == self.accumulation_steps else earlier)()
        if self._captured_update is not None:
            self._sum(step)
            self._captured_update()
        taken = StepArrays(*map(engine.copy, arrays))
        self._finish(step, taken)
        return taken

    def _sum(self, step: int) -> None:
        """Sum the gradients after the backward pass."""
        network, arrays = self.network, self._arrays
        self.engine.overwrite(arrays.summed, arrays.own)
        self.clock.first_layer_arrived(step, network.gradients[0])
        with self.clock.reductions(network.gradients):
            reduce_all(network, self.communicator, self.buckets, arrays)
            self.communicator.complete()


class StaticInference:
    """Inference on fixed arrays; each batch folds the batch norms anew, which reads the weights once.

    Args:
        network: The network, whose weights and statistics may change from one batch to the next.
        images: Arrays for the images of a batch; an inference of this shape must have been computed before.
    """

    def __init__(self, network: TrainableNetwork, images: Array) -> None:
        engine = self._engine = network.engine
        self._images = images
        self._logits = logits = engine.copy(network.inference()(images))
        self._replay = engine.capture(lambda: engine.overwrite(logits, network.inference()(images)))

    def __call__(self, images: Array) -> Array:
        """Queue the logits of a batch."""
        self._engine.overwrite(self._images, images)
        self._replay()
        return self._engine.copy(self._logits)
