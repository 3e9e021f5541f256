"""One synthetic step of each size and one inference before the clock starts, then everything restored bit for bit.

The warm-up allocates memory, loads kernels and opens connections outside the timed run. The rules allow that for
synthetic data.
"""

from collections.abc import Iterable

import numpy as np

from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch
from train.comm.communicator import Communicator
from train.engine.build import ModelParts
from train.engine.protocol import Engine, TrainableNetwork
from train.step import reduce_once

_LEAST_SIDE = 8


def warm_up(  # noqa: PLR0913 (each is another part of a step)
    engine: Engine,
    model: ModelParts,
    communicator: Communicator,
    batch_size: int,
    image_type: str = "float32",
    *,
    train_sizes: Iterable[int] = (),
    eval_size: int | None = None,
) -> None:
    """Run forward, backward, reductions, update and inference on blank images, then restore the model.

    Args:
        engine: The framework.
        model: Afterwards weights, running statistics and gradients are those of before, and the optimizer's state
            is zero.
        communicator: Reduces each bucket once, as the steps will, so that its buffers exist, and registers the weights.
        batch_size: Images of a micro-batch.
        image_type: Type of the images that follow. With another type, the first step would prepare everything anew.
        train_sizes: Sides of the training images. If empty, the network's own.
        eval_size: Side of the images of evaluations. If None, that of training.
    """
    network = model.network
    # From the largest on, whose memory has room for all others.
    for side in (*sorted(train_sizes, reverse=True),) or (None,):
        network.forward(*blank_batch(engine, network, batch_size, image_type, side))
        network.backward()
    reduce_once(engine, network, communicator, model.buckets)
    communicator.complete()
    model.optimizer.update(HyperParameters(lr=0.0, momentum=0.0, weight_decay=0.0))
    engine.wait(network.inference()(blank_batch(engine, network, batch_size, image_type, eval_size).images))
    network.load_weights(model.weights)
    network.zero_gradients()
    model.optimizer.reset()
    communicator.publish(network.masters)
    engine.wait_all()


def blank_batch(
    engine: Engine, network: TrainableNetwork, batch_size: int, image_type: str, side: int | None = None
) -> TrainingBatch:
    """Return the arrays of a micro-batch, all zeros; if ``side`` (px) is None, images are as large as the network's."""
    # Sides have 8 or more pixels, and images 4 channels or fewer.
    shape = [side if side and axis >= _LEAST_SIDE else axis for axis in network.image_shape]
    images = engine.from_host(np.zeros((batch_size, *shape), image_type))
    return TrainingBatch(images, engine.zeros((batch_size, *network.label_shape)))
