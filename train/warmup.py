"""One synthetic step and evaluation before the clock starts, then everything put back bit for bit.

It pays for memory, kernels and connections outside the timed run, as the rules allow for synthetic data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np

from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator
from train.engine.mxnet.network import TrainedNetwork
from train.loop import Optimizer
from train.schedule import HyperParameters

__all__ = ["warm_up"]


def warm_up(
    network: TrainedNetwork, optimizer: Optimizer, communicator: Communicator, *,
    buckets: BucketPlan, images: Any, weights: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    """Run forward, backward, reduction, update and inference, then restore.

    Args:
        network: Its weights, statistics and gradients are as ``load_weights(weights)`` leaves them afterwards.
        optimizer: Its momentum is zero afterwards.
        communicator: Reduces each bucket once, so that its buffers exist, and gets to know the weights.
        buckets: The bucket plan of the run.
        images: A micro-batch on the device; blank ones will do.
        weights: The initial weights.
    """
    labels = mx.nd.zeros((len(images), *network.label_shape), ctx=images.context)
    network.forward_backward(images, labels)
    for number, bucket in enumerate(buckets.order):
        communicator.reduce(f"warm_up_{number}", [network.gradients[index] for index in bucket])
    optimizer.update(HyperParameters(lr=0.0, momentum=0.0, weight_decay=0.0))
    network.predict(images).wait_to_read()
    network.load_weights(weights)
    network.zero_gradients()
    optimizer.reset()
    communicator.publish(network.masters)
    mx.nd.waitall()
