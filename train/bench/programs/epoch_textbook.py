"""One rank of ``bench epoch``: loops over epochs as training scripts do today, and records when each part happens.

*Source* of the loop: Horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py with Gluon. The readers are reset before
each epoch and each evaluation, the accuracy is read at every step, and each epoch writes a line. The network is a
small one of MXNet's model zoo.
"""

import logging
import os
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, Moments, gaps, mark
from train.bench.programs.textbook import broadcast_network, open_records, train_batch
from train.bench.samples import run_task, write_samples
from train.rank.identity import read_identity
from train.rank.watchdog import die_with_parent

_CLASSES = 10
_PIXELS: dict[str, Any] = {"preprocess_threads": 1, **{f"mean_{each}": 80 for each in "rgb"}} | {
    f"std_{each}": 90 for each in "rgb"
}


def main(data: str, image_size: int, batch_size: int, epochs: int, eval_every: int) -> None:
    """Train on the packed images of the folder ``data``, and write the gaps between epochs on rank 0."""
    die_with_parent()
    logging.basicConfig(level=logging.INFO)
    hvd.init()
    shard = {"num_parts": hvd.size(), "part_index": hvd.rank(), "shuffle": True, "rand_mirror": True}
    training = open_records(f"{data}/train", image_size, batch_size, **_PIXELS, **shard)
    evaluation = open_records(f"{data}/eval", image_size, batch_size, **_PIXELS)
    network = mx.gluon.model_zoo.vision.mobilenet0_25(classes=_CLASSES)
    weights = broadcast_network(network)
    trainer = hvd.DistributedTrainer(weights, mx.optimizer.create("sgd", momentum=0.9, wd=1e-4, learning_rate=0.05))
    loss_of, accuracy = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    moments: Moments = []
    for epoch in range(epochs):
        mark(moments, EPOCH)
        training.reset()
        accuracy.reset()
        for batch in training:
            images, labels = (arrays[0].as_in_context(mx.cpu()) for arrays in (batch.data, batch.label))
            mark(moments, BATCH)
            accuracy.update([labels], [train_batch(network, trainer, loss_of, images, labels)])
            mark(moments, QUEUED)
        logging.info("epoch %d: training accuracy %.4f", epoch, accuracy.get()[1])
        if (epoch + 1) % eval_every == 0:
            mx.nd.waitall()
            mark(moments, DRAINED)
            _evaluate(network, evaluation, moments)
    # A process that ends while Horovod has its sums to do fails, sometimes by a corrupted heap.
    mx.nd.waitall()
    write_samples(read_identity(os.environ), "gaps", [gaps(moments)])


def _evaluate(network: Any, images: Any, moments: Moments) -> None:
    images.reset()
    accuracy = mx.metric.Accuracy()
    mark(moments, EVALUATING)
    for batch in images:
        accuracy.update(batch.label, [network(batch.data[0].as_in_context(mx.cpu()))])
    top1 = accuracy.get()[1]
    mark(moments, EVALUATED)
    logging.info("evaluation: top-1 %.4f", top1)


if __name__ == "__main__":
    run_task(main)
