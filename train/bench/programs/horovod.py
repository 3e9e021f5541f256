"""One rank of ``bench peers``: what Horovod's own MXNet example for ImageNet does, written anew.

*Source*: horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py, with ``--use-rec --no-cuda`` and otherwise the
defaults of the example: the module interface; ``resnet50_v1`` (the network of that name in MXNet's model zoo is
GluonCV's) or another network of the zoo; ImageRecordIter with two threads and colour jitter; SGD with momentum 0.9 and
a learning rate of 0.05 a rank, whose decay over 90 epochs is left out; the accuracy read at every batch. The example's
other interface, Gluon, is no faster.
"""

import os
import time
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx

from train.bench.samples import end_peer, write_samples
from train.rank.identity import read_identity

_CLASSES = 1000


def main(*, data: str, model: str, image_size: int, batch_size: int, warmup: int, steps: int) -> None:
    """Measure the images/s of all ranks.

    Args:
        data: RecordIO files without their suffix.
        model: Name in MXNet's model zoo.
        image_size: Side of an image, px.
        batch_size: Images a rank.
        warmup: Steps that do not count.
        steps: Steps that count, after those.
    """
    hvd.init()
    ends: list[float] = []

    def end_step(_: object) -> None:
        if len(ends) + 1 in (warmup, warmup + steps):
            mx.nd.waitall()
        ends.append(time.perf_counter())

    network = mx.gluon.model_zoo.vision.get_model(model, classes=_CLASSES, ctx=mx.cpu())
    images = mx.io.ResizeIter(_images(data, image_size, batch_size), warmup + steps)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(network(mx.sym.var("data")), name="softmax"), context=mx.cpu())
    module.bind(data_shapes=images.provide_data, label_shapes=images.provide_label)
    module.init_params(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    held = module.get_params()
    for parameters in held:
        hvd.broadcast_parameters(parameters, root_rank=0)
    module.set_params(*held)
    sgd = mx.optimizer.create(
        "sgd", learning_rate=0.05 * hvd.size(), momentum=0.9, wd=1e-4, rescale_grad=1 / batch_size
    )
    optimizer = hvd.DistributedOptimizer(sgd)
    module.fit(images, num_epoch=1, kvstore=None, batch_end_callback=end_step, optimizer=optimizer)
    seconds = mx.nd.array([ends[-1] - ends[warmup - 1]])
    slowest_s = float(hvd.allgather(seconds, name="seconds").max().asscalar())
    rate = hvd.size() * batch_size * steps / slowest_s
    write_samples(read_identity(os.environ), "steps", [{"images_per_s": rate}])
    end_peer(lambda: hvd.allgather(mx.nd.zeros(1), name="end").asnumpy())


def _images(data: str, image_size: int, batch_size: int) -> Any:
    return mx.io.ImageRecordIter(
        path_imgrec=f"{data}.rec",
        path_imgidx=f"{data}.idx",
        batch_size=batch_size,
        data_shape=(3, image_size, image_size),
        verbose=False,
        preprocess_threads=2,
        shuffle=True,
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
    )
