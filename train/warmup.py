"""One synthetic step and one inference before the clock starts, then everything restored bit for bit.

The warm-up allocates memory, loads kernels and opens connections outside the timed run. The rules allow that for
synthetic data.
"""

import numpy as np

from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch
from train.comm.communicator import Communicator
from train.engine.build import ModelParts
from train.engine.protocol import Engine, TrainableNetwork
from train.step import reduce_once

_LEAST_SIDE = 8


def warm_up(
    engine: Engine,
    model: ModelParts,
    communicator: Communicator,
    batch_size: int,
    image_type: str = "float32",
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
        eval_size: Side of the images of evaluations. If None, that of training.
    """
    network = model.network
    images, labels = blank_batch(engine, network, batch_size, image_type)
    network.forward(images, labels)
    network.backward()
    reduce_once(engine, network, communicator, model.buckets)
    communicator.complete()
    model.optimizer.update(HyperParameters(lr=0.0, momentum=0.0, weight_decay=0.0))
    if eval_size is not None:
        # Sides have 8 or more pixels, and images 4 channels or fewer.
        shape = [axis if axis < _LEAST_SIDE else eval_size for axis in network.image_shape]
        images = engine.from_host(np.zeros((batch_size, *shape), image_type))
    engine.wait(network.inference()(images))
    network.load_weights(model.weights)
    network.zero_gradients()
    model.optimizer.reset()
    communicator.publish(network.masters)
    engine.wait_all()


def blank_batch(engine: Engine, network: TrainableNetwork, batch_size: int, image_type: str) -> TrainingBatch:
    """Return the arrays of a micro-batch, all zeros."""
    images = engine.from_host(np.zeros((batch_size, *network.image_shape), image_type))
    return TrainingBatch(images, engine.zeros((batch_size, *network.label_shape)))
