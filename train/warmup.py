"""One synthetic step of each size and one inference before the clock starts, then everything restored bit for bit.

The warm-up allocates memory, loads kernels and opens connections outside the timed run. The rules allow that for
synthetic data.
"""

from collections.abc import Callable, Sequence

import numpy as np

from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch
from train.comm.communicator import Communicator
from train.engine.build import ModelParts
from train.engine.protocol import TrainableNetwork
from train.step import reduce_once

_LEAST_SIDE = 8

TRIAL = HyperParameters(lr=1.0, momentum=0.9, weight_decay=0.1)
"""The numbers of the update: its parts are of the weights' size, so that each rounding shows in their bits."""


def warm_up(
    model: ModelParts,
    communicator: Communicator,
    batch_size: int,
    *,
    on_update: Callable[[], object] = lambda: None,
) -> None:
    """Run forward, backward, reductions, update and inference on made-up images, then restore the model.

    Args:
        model: Afterwards weights, running statistics and gradients are those of before, and the optimizer's state
            is zero.
        communicator: Reduces each bucket once, as the steps will, so that its buffers exist, and registers the weights.
        batch_size: Images of a micro-batch, whose type is that of the images that follow, for which all is prepared.
        on_update: Called after the update, while the network has the weights that it leaves.
    """
    network, engine = model.network, model.network.engine
    draw = np.random.default_rng(0)
    # From the largest on, whose memory has room for all others.
    for side in model.train_sides or (None,):
        labels = engine.zeros((batch_size, *network.label_shape))
        # Blank images would have gradients of 0, by which every way of updating weights leaves the same bits.
        image = draw.integers(0, 3, _image_shape(network, side)).astype(model.image_type)
        network.forward(engine.from_host(np.broadcast_to(image, (batch_size, *image.shape))), labels)
        network.backward()
    reduce_once(model, communicator)
    communicator.complete()
    for part in model.parts:
        part.gradients(network.gradients)
    model.optimizer.update(TRIAL)
    on_update()
    engine.wait(network.inference()(blank_batch(model, batch_size, model.eval_side).images))
    network.load_weights(model.weights)
    network.zero_gradients()
    model.optimizer.reset()
    for part in model.parts:
        part.reset()
    communicator.publish(network.masters)
    engine.wait_all()


def blank_batch(model: ModelParts, batch_size: int, side: int | None) -> TrainingBatch:
    """Return the arrays of a micro-batch, all zeros; if ``side`` (px) is None, images are as large as the network's."""
    engine = model.network.engine
    images = engine.from_host(np.zeros((batch_size, *_image_shape(model.network, side)), model.image_type))
    return TrainingBatch(images, engine.zeros((batch_size, *model.network.label_shape)))


def _image_shape(network: TrainableNetwork, side: int | None) -> Sequence[int]:
    # Sides have 8 or more pixels, and images 4 channels or fewer.
    return [side if side and axis >= _LEAST_SIDE else axis for axis in network.image_shape]
