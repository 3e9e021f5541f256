"""One rank of ``bench peers``: what Horovod's own MXNet example for ImageNet does, in our words.

*Source*: horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py, with ``--use-rec --no-cuda`` and its defaults: the
module interface, ``resnet50_v1`` (MXNet's model zoo has the GluonCV network of that name) or another of the zoo's
networks as its ``--model``, ImageRecordIter with two threads and colour jitter, SGD of momentum 0.9 at 0.05 a rank
with a polynomial decay, accuracy read every batch; or ``--mode gluon``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from train.bench.samples import tell
from train.rank.identity import read_identity

__all__ = ["main"]

_CLASSES = 1000
_EPOCH_IMAGES, _EPOCHS, _WARMUP_EPOCHS = 1281167, 90, 10


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="RecordIO files without their suffix")
    parser.add_argument("--model", required=True, help="as MXNet's model zoo calls it")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--mode", choices=["module", "gluon"], default="module")
    parser.add_argument("--warmup", type=int, required=True, help="steps before those that count")
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell images/s of all ranks."""
    options = _options(arguments)
    hvd.init()
    train = {"module": _train_module, "gluon": _train_gluon}[options.mode]
    seconds = train(options, mx.io.ResizeIter(_images(options), options.warmup + options.steps))
    slowest_s = float(hvd.allgather(mx.nd.array([seconds]), name="seconds").max().asscalar())
    images_per_s = hvd.size() * options.batch_size * options.steps / slowest_s
    tell(read_identity(os.environ), options.mode, [{"images_per_s": images_per_s}])
    return 0


def _images(options: argparse.Namespace) -> Any:
    return mx.io.ImageRecordIter(
        path_imgrec=f"{options.data}.rec", path_imgidx=f"{options.data}.idx", preprocess_threads=2, shuffle=True,
        batch_size=options.batch_size, data_shape=(3, options.image_size, options.image_size), label_width=1,
        mean_r=123.68, mean_g=116.779, mean_b=103.939, rand_mirror=True, rand_crop=False, random_resized_crop=True,
        min_aspect_ratio=3 / 4, max_aspect_ratio=4 / 3, min_random_area=0.08, max_random_area=1, brightness=0.4,
        saturation=0.4, contrast=0.4, pca_noise=0.1, num_parts=hvd.size(), part_index=hvd.rank(), verbose=False,
    )  # fmt: skip


def _optimizer(options: argparse.Namespace, **rescale: float) -> Any:
    steps = _EPOCH_IMAGES // hvd.size() // options.batch_size
    rates = mx.lr_scheduler.PolyScheduler(
        _EPOCHS * steps, base_lr=0.05 * hvd.size(), pwr=2, warmup_steps=_WARMUP_EPOCHS * steps, warmup_begin_lr=0.0
    )
    return mx.optimizer.create("sgd", wd=1e-4, momentum=0.9, lr_scheduler=rates, **rescale)


def _network(model: str) -> tuple[Any, Any]:
    weights = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    return mx.gluon.model_zoo.vision.get_model(model, classes=_CLASSES, ctx=mx.cpu()), weights


class _Stopwatch:
    """Seconds from the end of the last step that warms up to the end of the last step."""

    def __init__(self, warmup: int, steps: int) -> None:
        self._first, self._last, self._number = warmup, warmup + steps, 0
        self.seconds = 0.0

    def __call__(self, _: object = None) -> None:
        """Tell that a step has ended."""
        self._number += 1
        if self._number in (self._first, self._last):
            mx.nd.waitall()
            self.seconds = time.perf_counter() - self.seconds


def _train_module(options: argparse.Namespace, images: Any) -> float:
    network, weights = _network(options.model)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(network(mx.sym.var("data")), name="softmax"), context=mx.cpu())
    module.bind(data_shapes=images.provide_data, label_shapes=images.provide_label)
    module.init_params(weights)
    held = module.get_params()
    for parameters in held:
        hvd.broadcast_parameters(parameters, root_rank=0)
    module.set_params(*held)
    optimizer = hvd.DistributedOptimizer(_optimizer(options, rescale_grad=1 / options.batch_size))
    watch = _Stopwatch(options.warmup, options.steps)
    module.fit(images, num_epoch=1, kvstore=None, batch_end_callback=watch, optimizer=optimizer)
    return watch.seconds


def _train_gluon(options: argparse.Namespace, images: Any) -> float:
    network, weights = _network(options.model)
    network.hybridize()
    network.initialize(weights, ctx=mx.cpu())
    parameters = network.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    trainer = hvd.DistributedTrainer(parameters, _optimizer(options))
    loss_of, accuracy = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    watch = _Stopwatch(options.warmup, options.steps)
    for batch in images:
        data, labels = (arrays[0].as_in_context(mx.cpu()) for arrays in (batch.data, batch.label))
        with mx.autograd.record():
            outputs = network(data)
            loss = loss_of(outputs, labels)
        loss.backward()
        trainer.step(options.batch_size)
        accuracy.update([labels], [outputs])
        watch()
    return watch.seconds


if __name__ == "__main__":
    sys.exit(main())
