"""The trained network of a checkpoint in every format, loaded again, and its score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configs.ideas.part import Place, parts_of
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from logs.checkpoints import read
from train.checkpoint import evaluated_weights
from train.comm.communicator import SingleProcess
from train.dataset import images_of
from train.engine.build import build_model
from train.engine.protocol import open_engine
from train.evaluate import metric_of
from train.rank.identity import Identity

if TYPE_CHECKING:
    from train.engine.protocol import Predict
    from train.evaluate import Score

PREFIX = "network"
"""Beginning of the names of an export's files."""

ALONE = Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")
"""The one rank of an export."""


def on_cpu(cluster: Cluster) -> Cluster:
    """Return the same cluster with one rank's engine on a CPU, in float32 and NCHW."""
    engine = cluster.engine.model_copy(update={"precision": "float32", "layout": "NCHW"})
    return cluster.model_copy(update={"device": "cpu", "engine": engine})


def export_network(
    recipe: Recipe, cluster: Cluster, checkpoint: Path, destination: Path
) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function from normalised images to logits of the loaded network.

    The engine's own formats and ONNX come first, then safetensors: float32 tensors in OIHW, named as in a checkpoint.

    Args:
        recipe: The network and its images.
        cluster: A cluster as `on_cpu` returns it.
        checkpoint: The checkpoint that holds the weights.
        destination: An existing folder.
    """
    from safetensors.numpy import load_file, save  # noqa: PLC0415 (only exports need it)

    engine = open_engine(cluster, ALONE)
    plan, tensors = plan_run(recipe, cluster.world_size), evaluated_weights(read(checkpoint))
    network = build_model(engine, recipe, cluster, plan, tensors).network
    yield from engine.export_formats(network, destination / PREFIX)
    path = destination / f"{PREFIX}.safetensors"
    # The library writes an array that is not contiguous in the wrong order, and explains no full disk as Python does.
    path.write_bytes(save({name: np.ascontiguousarray(each) for name, each in tensors.items()}))
    restored = build_model(engine, recipe, cluster, plan, load_file(path)).network.inference()
    yield "safetensors", lambda images: engine.to_host(restored(images))


def evaluate(recipe: Recipe, cluster: Cluster, predict: Predict) -> Score:
    """Return the score over all evaluation images, counted as in a run."""
    engine = open_engine(cluster, ALONE)
    plan = plan_run(recipe, cluster.world_size)
    images = images_of(recipe, cluster, plan, ALONE)
    images.load()
    source = images.open_evaluation(engine)
    metric, logits = metric_of(engine, recipe.loss, 0)(), predict
    for part in parts_of(Place(recipe, cluster, plan, ALONE.rank, engine, None)):
        logits = part.logits(logits)
    for batch in source.batches():
        metric.add(engine.from_host(logits(batch.images)), batch.labels, batch.num_valid)
    source.close()
    return metric.score(SingleProcess())
