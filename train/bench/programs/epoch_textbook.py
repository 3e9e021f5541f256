"""One rank of ``bench epoch``: loops over epochs as training scripts do today, and records when each part happens.

*Source* of the loop: Horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py with Gluon. The readers are reset before
each epoch and each evaluation, the accuracy is read at every step, and each epoch writes a line. The network is a
small one of MXNet's model zoo.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, Moments, gaps, mark
from train.rank.watchdog import die_with_parent

_CLASSES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and write the gaps between epochs on rank 0."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--eval-every", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    import horovod.mxnet as hvd  # noqa: PLC0415

    hvd.init()
    moments = _train(options, hvd)
    if hvd.rank() == 0:
        options.output.write_text(json.dumps(gaps(moments)), encoding="utf-8")
    return 0


def _train(options: argparse.Namespace, hvd: Any) -> Moments:
    import mxnet as mx  # noqa: PLC0415

    training = _reader(options, "train", num_parts=hvd.size(), part_index=hvd.rank(), shuffle=True, rand_mirror=True)
    evaluation = _reader(options, "eval")
    network = mx.gluon.model_zoo.vision.mobilenet0_25(classes=_CLASSES)
    network.hybridize()
    network.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    weights = network.collect_params()
    hvd.broadcast_parameters(weights, root_rank=0)
    trainer = hvd.DistributedTrainer(weights, mx.optimizer.create("sgd", momentum=0.9, wd=1e-4, learning_rate=0.05))
    loss_of, accuracy = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    moments: Moments = []
    for epoch in range(options.epochs):
        mark(moments, EPOCH)
        training.reset()
        accuracy.reset()
        for batch in training:
            images, labels = (arrays[0].as_in_context(mx.cpu()) for arrays in (batch.data, batch.label))
            mark(moments, BATCH)
            with mx.autograd.record():
                output = network(images)
                loss = loss_of(output, labels)
            loss.backward()
            trainer.step(options.batch_size)
            accuracy.update([labels], [output])
            mark(moments, QUEUED)
        logging.info("epoch %d: training accuracy %.4f", epoch, accuracy.get()[1])
        if (epoch + 1) % options.eval_every == 0:
            mx.nd.waitall()
            mark(moments, DRAINED)
            _evaluate(network, evaluation, moments)
    # A process that ends while Horovod has its sums to do fails, sometimes by a corrupted heap.
    mx.nd.waitall()
    return moments


def _evaluate(network: Any, images: Any, moments: Moments) -> None:
    import mxnet as mx  # noqa: PLC0415

    images.reset()
    accuracy = mx.metric.Accuracy()
    mark(moments, EVALUATING)
    for batch in images:
        accuracy.update(batch.label, [network(batch.data[0].as_in_context(mx.cpu()))])
    top1 = accuracy.get()[1]
    mark(moments, EVALUATED)
    logging.info("evaluation: top-1 %.4f", top1)


def _reader(options: argparse.Namespace, split: str, **settings: Any) -> Any:
    import mxnet as mx  # noqa: PLC0415

    return mx.io.ImageRecordIter(
        path_imgrec=str(options.data / f"{split}.rec"),
        path_imgidx=str(options.data / f"{split}.idx"),
        data_shape=(3, options.image_size, options.image_size),
        batch_size=options.batch_size,
        preprocess_threads=1,
        mean_r=80,
        mean_g=80,
        mean_b=80,
        std_r=90,
        std_g=90,
        std_b=90,
        verbose=False,
        **settings,
    )


if __name__ == "__main__":
    sys.exit(main())
