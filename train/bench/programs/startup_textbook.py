"""One rank of ``bench startup``: starts as scripts do today, one phase after another, with weights broadcast by rank 0.

*Source* of the order: Horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py with Gluon: imports, ``hvd.init``,
readers, network, random weights, broadcast, trainer. Then follow, as in the runs of this program, a warm-up step on
blank images, and the moment at which a run would start.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.rank.startup import Ledger


def main(arguments: Sequence[str] | None = None) -> int:
    """Go through all phases, and write the ledger on rank 0."""
    ledger = Ledger()
    options = _options(arguments)
    with ledger.phase("imports"):
        if options.readers == "dali":
            import data.input.pipeline  # noqa: F401, PLC0415 (DALI comes before Horovod, as `train.dataset` explains)
        import horovod.mxnet as hvd  # noqa: PLC0415
        import mxnet as mx  # noqa: PLC0415
    with ledger.phase("communicator"):
        hvd.init()
    with ledger.phase("pipelines"):
        open_readers = _open_dali if options.readers == "dali" else _open_mxnet
        readers = open_readers(options, hvd.rank(), hvd.size())
    with ledger.phase("network and weights"):
        network = mx.gluon.model_zoo.vision.get_model("resnet50_v1", classes=1000)
        network.hybridize()
        network.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
        weights = network.collect_params()
        hvd.broadcast_parameters(weights, root_rank=0)
    # Gluon draws the weights and Horovod broadcasts them only now, when the first batch tells their shapes.
    with ledger.phase("warm-up"):
        trainer = hvd.DistributedTrainer(weights, mx.optimizer.create("sgd", momentum=0.9, wd=1e-4))
        side = options.image_size
        _warm_up(mx, network, trainer, mx.nd.zeros((options.batch_size, 3, side, side)))
    if hvd.rank() == 0:
        row = {**ledger.to_json(), "run_start_time": time.time()}
        options.output.write_text(json.dumps(row), encoding="utf-8")
    del readers
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train.bench.programs.startup_textbook", description=__doc__)
    parser.add_argument("--recipe", required=True, help="recipe of the data set")
    parser.add_argument(
        "--readers",
        choices=["mxnet", "dali"],
        required=True,
        help="whose readers to open",
    )
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True, help="packed data set of the recipe")
    parser.add_argument("--output", type=Path, required=True, help="file for the ledger of rank 0")
    return parser.parse_args(arguments)


def _open_mxnet(options: argparse.Namespace, rank: int, world_size: int) -> list[Any]:
    """Open MXNet's readers for training and evaluation."""
    import mxnet as mx  # noqa: PLC0415

    common = {
        "batch_size": options.batch_size,
        "data_shape": (3, options.image_size, options.image_size),
        "preprocess_threads": 1,
        "label_width": 1,
        "mean_r": 123.68,
        "mean_g": 116.779,
        "mean_b": 103.939,
        "verbose": False,
    }
    crop = {"rand_mirror": True, "random_resized_crop": True, "min_random_area": 0.08, "max_random_area": 1.0}
    shard = {"num_parts": world_size, "part_index": rank, "shuffle": True}
    return [
        mx.io.ImageRecordIter(
            path_imgrec=str(options.data / f"{split}.rec"),
            path_imgidx=str(options.data / f"{split}.idx"),
            **common,
            **others,
        )
        for split, others in (("train", crop | shard), ("eval", {"resize": options.image_size * 8 // 7}))
    ]


def _open_dali(options: argparse.Namespace, rank: int, world_size: int) -> list[Any]:
    """Open the pipelines that runs of this program use."""
    from configs.load import load_both  # noqa: PLC0415
    from data.input.packed import open_evaluation, open_training  # noqa: PLC0415

    overrides = [f"model.image_size={options.image_size}", "data.eval_resize=null"]
    recipe, cluster = load_both(options.recipe, "laptop", overrides)
    place = {"batch_size": options.batch_size, "rank": rank, "world_size": world_size, "device_id": None}
    return [each(recipe, cluster.engine, options.data, **place) for each in (open_training, open_evaluation)]


def _warm_up(mx: Any, network: Any, trainer: Any, images: Any) -> None:
    """Train one step with a learning rate of zero."""
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer.set_learning_rate(0.0)
    with mx.autograd.record():
        loss = loss_of(network(images), mx.nd.zeros(images.shape[:1]))
    loss.backward()
    trainer.step(images.shape[0])
    mx.nd.waitall()


if __name__ == "__main__":
    sys.exit(main())
