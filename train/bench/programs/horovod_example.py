"""One rank of ``bench peers``: does what Horovod's own MXNet example for ImageNet does, written anew.

*Source*: horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py, with ``--use-rec --no-cuda`` and otherwise the
defaults of the example: the module interface; ``resnet50_v1`` (the network of that name in MXNet's model zoo is
GluonCV's) or another network of the zoo as ``--model``; ImageRecordIter with two threads and colour jitter; SGD with
momentum 0.9 and a learning rate of 0.05 a rank with polynomial decay; the accuracy read at every batch. ``--mode
gluon`` is the example's other interface.
"""

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from train.bench.samples import end_peer, write_samples
from train.rank.identity import read_identity

_CLASSES = 1000
_EPOCH_IMAGES, _EPOCHS, _WARMUP_EPOCHS = 1281167, 90, 10


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="RecordIO files without their suffix")
    parser.add_argument("--model", required=True, help="name in MXNet's model zoo")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--mode", choices=["module", "gluon"], default="module")
    parser.add_argument("--warmup", type=int, required=True, help="steps that do not count")
    parser.add_argument("--steps", type=int, required=True, help="steps that count, after those")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the images/s of all ranks."""
    options = _options(arguments)
    hvd.init()
    train = {"module": _train_module, "gluon": _train_gluon}[options.mode]
    seconds = train(options, mx.io.ResizeIter(_images(options), options.warmup + options.steps))
    slowest_s = float(hvd.allgather(mx.nd.array([seconds]), name="seconds").max().asscalar())
    images_per_s = hvd.size() * options.batch_size * options.steps / slowest_s
    write_samples(read_identity(os.environ), options.mode, [{"images_per_s": images_per_s}])


def _images(options: argparse.Namespace) -> Any:
    return mx.io.ImageRecordIter(
        path_imgrec=f"{options.data}.rec",
        path_imgidx=f"{options.data}.idx",
        preprocess_threads=2,
        shuffle=True,
        batch_size=options.batch_size,
        data_shape=(3, options.image_size, options.image_size),
        label_width=1,
        mean_r=123.68,
        mean_g=116.779,
        mean_b=103.939,
        rand_mirror=True,
        rand_crop=False,
        random_resized_crop=True,
        min_aspect_ratio=3 / 4,
        max_aspect_ratio=4 / 3,
        min_random_area=0.08,
        max_random_area=1,
        brightness=0.4,
        saturation=0.4,
        contrast=0.4,
        pca_noise=0.1,
        num_parts=hvd.size(),
        part_index=hvd.rank(),
        verbose=False,
    )


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
    """Measures the seconds from the end of the last step that does not count to the end of the last step."""

    def __init__(self, warmup: int, steps: int) -> None:
        self._first, self._last, self._number = warmup, warmup + steps, 0
        self.seconds = 0.0

    def __call__(self, _: object = None) -> None:
        """Count a step that has ended."""
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
    main()
    end_peer(lambda: hvd.allgather(mx.nd.zeros(1), name="end").asnumpy())
