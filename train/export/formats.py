"""The trained network of a checkpoint in every format, loaded again, and its score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configs.errors import UserError
from configs.ideas.part import Place, parts_of
from configs.plan import plan_run
from configs.schema import Cluster, Model, Recipe
from data.input.batches import DataError
from logs.checkpoints import read
from train.checkpoint import evaluated_weights
from train.comm.communicator import SingleProcess
from train.dataset import images_of
from train.engine.build import build_model
from train.engine.onnx_graph import export_onnx
from train.engine.protocol import open_engine
from train.evaluate import metric_of
from train.networks.arch import network_of
from train.networks.torchvision_names import renamed, torchvision_names
from train.rank.identity import Identity

if TYPE_CHECKING:
    from train.engine.protocol import Predict
    from train.evaluate import Score

_OF_TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "mobilenet_v2")
_FIXED = ("residual", "input_channels", "bn_epsilon")
"""Keys of a network that are the same in torchvision, where they have this program's defaults."""

PREFIX = "network"
"""Beginning of the names of an export's files."""

ALONE = Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")
"""The one rank of an export."""


def on_cpu(cluster: Cluster) -> Cluster:
    """Return the same cluster with one rank's engine on a CPU, in float32 and NCHW."""
    engine = cluster.engine.model_copy(update={"precision": "float32", "layout": "NCHW"})
    return cluster.model_copy(update={"device": "cpu", "engine": engine})


def names_of_torchvision(model: Model) -> dict[str, str]:
    """Return this program's name -> torchvision's for each tensor of a network that torchvision has, too.

    Raises:
        UserError: The network is another one.
    """
    other = [key for key in _FIXED if getattr(model, key) != Model.model_fields[key].default]
    if other or model.name not in _OF_TORCHVISION:
        own = f" with other values of {', '.join(other)}" if other else ""
        allowed = f"{', '.join(_OF_TORCHVISION)} with the defaults of {', '.join(_FIXED)}"
        raise UserError(f"--names torchvision: the network is {model.name}{own}; allowed: {allowed}; leave it out")
    return torchvision_names(network_of(model))


def export_network(
    recipe: Recipe, cluster: Cluster, checkpoint: Path, destination: Path, names: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function from normalised images to logits of the loaded network.

    First comes ``trained``, the network itself, then the engine's own formats, ONNX if its packages are installed, and
    safetensors: float32 tensors in OIHW.

    Args:
        recipe: The network and its images.
        cluster: A cluster as `on_cpu` returns it.
        checkpoint: The checkpoint that holds the weights.
        destination: An existing folder.
        names: This program's name -> that in files of nothing but tensors. If None, these have this program's.
    """
    from safetensors.numpy import load_file, save  # noqa: PLC0415 (only exports need it)

    engine = open_engine(cluster, ALONE)
    plan, tensors = plan_run(recipe, cluster.world_size), evaluated_weights(read(checkpoint))
    network = build_model(engine, recipe, cluster, plan, tensors).network
    names = names or {name: name for name in tensors}
    predict = network.inference()
    yield "trained", lambda images: engine.to_host(predict(images))
    yield from engine.export_formats(network, destination / PREFIX, names)
    for name, of_host in export_onnx(network.network, tensors, network.model.bn_epsilon, destination / PREFIX):
        yield name, lambda images: of_host(engine.to_host(images))  # noqa: B023 (there is one at most)
    path = destination / f"{PREFIX}.safetensors"
    # The library writes an array that is not contiguous in the wrong order, and explains no full disk as Python does.
    path.write_bytes(save({name: np.asarray(each, order="C") for name, each in renamed(tensors, names).items()}))
    saved = load_file(path)
    loaded = {name: saved[names[name]] for name in tensors}
    restored = build_model(engine, recipe, cluster, plan, loaded).network.inference()
    yield "safetensors", lambda images: engine.to_host(restored(images))


def evaluate(recipe: Recipe, cluster: Cluster, predict: Predict) -> Score:
    """Return the score over all evaluation images, counted as in a run; a `UserError` names what cannot be read."""
    engine = open_engine(cluster, ALONE)
    plan = plan_run(recipe, cluster.world_size)
    images = images_of(recipe, cluster, plan, ALONE)
    images.load()
    source = images.open_evaluation(engine)
    metric, logits = metric_of(engine, recipe.loss)(), predict
    for part in parts_of(Place(recipe, cluster, plan, ALONE.rank, engine, None)):
        logits = part.logits(logits)
    try:
        for batch in source.batches():
            metric.add(engine.from_host(logits(batch.images)), batch.labels, batch.num_valid)
    except DataError as error:
        raise UserError(f"{error}; or give --no-evaluation, to export without the images") from None
    source.close()
    return metric.score(SingleProcess())
