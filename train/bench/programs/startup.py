"""One rank of ``bench startup``: starts as scripts do today, one phase after another, with weights broadcast by rank 0.

*Source* of the order: Horovod 0.28.1, examples/mxnet/mxnet_imagenet_resnet50.py with Gluon: imports, ``hvd.init``,
readers, network, random weights, broadcast, trainer. Then follow, as in the runs of this program, a warm-up step on
blank images, and the moment at which a run would start.
"""

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from train.bench.samples import write_samples
from train.rank.identity import read_identity
from train.rank.startup import Ledger


def main(recipe: str, data: str, image_size: int, batch_size: int) -> None:
    """Go through all phases, and write the ledger on rank 0.

    Args:
        recipe: Recipe of the data set.
        data: Folder of the packed images.
        image_size: Side of an image, px.
        batch_size: Images a rank.
    """
    ledger = Ledger()
    with ledger.phase("imports"):
        import_module("data.input.pipeline")  # DALI comes before Horovod, as `train.dataset` explains
        import horovod.mxnet as hvd  # noqa: PLC0415
        import mxnet as mx  # noqa: PLC0415

        from train.bench.programs.horovod import broadcast_network, train_batch  # noqa: PLC0415
    with ledger.phase("communicator"):
        hvd.init()
    with ledger.phase("pipelines"):
        opened = _open_pipelines(recipe, data, image_size, batch_size, hvd.rank(), hvd.size())
    with ledger.phase("network and weights"):
        network = mx.gluon.model_zoo.vision.get_model("resnet50_v1", classes=1000)
        weights = broadcast_network(network)
    # Gluon draws the weights and Horovod broadcasts them only now, when the first batch tells their shapes.
    with ledger.phase("warm-up"):
        trainer = hvd.DistributedTrainer(weights, mx.optimizer.create("sgd", momentum=0.9, wd=1e-4))
        trainer.set_learning_rate(0.0)
        loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        images = mx.nd.zeros((batch_size, 3, image_size, image_size))
        train_batch(network, trainer, loss_of, images, mx.nd.zeros(batch_size))
        mx.nd.waitall()
    write_samples(read_identity(os.environ), "ledger", [{**ledger.to_json(), "run_start_time": time.time()}])
    del opened


def _open_pipelines(
    recipe_name: str, data: str, image_size: int, batch_size: int, rank: int, world_size: int
) -> list[Any]:
    """Open the pipelines that runs of this program use."""
    from configs.load import load_both  # noqa: PLC0415
    from data.input.packed import open_evaluation, open_training  # noqa: PLC0415

    overrides = [f"model.image_size={image_size}", "data.eval_resize=null"]
    recipe, cluster = load_both(recipe_name, "laptop", overrides)
    place: dict[str, Any] = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "device_id": None}
    return [each(recipe, cluster.engine, Path(data), **place) for each in (open_training, open_evaluation)]
