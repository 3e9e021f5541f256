"""What scripts for MXNet and Horovod do today, after Horovod's example for ImageNet; two programs share it.

*Source*: horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py. MXNet and Horovod are imported where they are used,
because one of the benches measures these imports.
"""

from typing import Any


def random_weights() -> Any:
    """Return the initialiser of the example."""
    import mxnet as mx  # noqa: PLC0415

    return mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)


def broadcast_network(network: Any) -> Any:
    """Draw the weights of a Gluon network and broadcast those of rank 0; return the parameters."""
    import horovod.mxnet as hvd  # noqa: PLC0415

    network.hybridize()
    network.initialize(random_weights())
    parameters = network.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    return parameters


def train_batch(network: Any, trainer: Any, loss_of: Any, images: Any, labels: Any) -> Any:
    """Queue a step with Gluon, and return the network's output."""
    import mxnet as mx  # noqa: PLC0415

    with mx.autograd.record():
        output = network(images)
        loss = loss_of(output, labels)
    loss.backward()
    trainer.step(images.shape[0])
    return output
