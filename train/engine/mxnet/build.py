"""What is trained, put together: network, weights, optimizer and bucket plan of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.load import resolve_path
from configs.plan import RunPlan
from configs.schema import Adam, Cluster, Recipe
from data.shards import stream_seed
from train.comm.buckets import BucketPlan, plan_reductions
from train.engine.init import initial_weights
from train.networks.arch import Network, build_network
from train.rank.identity import Identity

__all__ = ["Model", "build_model", "dropout_seed"]


@dataclass(frozen=True)
class Model:
    """What is trained, and by what, on this rank."""

    network: Any
    optimizer: Any
    weights: dict[str, np.ndarray]
    buckets: BucketPlan
    context: Any


def build_model(
    recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity, kept: Mapping[str, np.ndarray] | None = None
) -> Model:  # fmt: skip
    """Make network, weights, optimizer and bucket plan.

    Args:
        recipe: What is trained.
        cluster: Where.
        plan: Batches.
        identity: Which device.
        kept: Weights and statistics to go on with; none: what the recipe begins with.
    """
    import mxnet as mx  # noqa: PLC0415 (seconds; the communicator's thread imports it meanwhile)

    from train.engine.mxnet.adam import AdamOptimizer  # noqa: PLC0415
    from train.engine.mxnet.lars import MomentumOptimizer  # noqa: PLC0415
    from train.engine.mxnet.network import TrainedNetwork  # noqa: PLC0415

    description = recipe.model
    table = build_network(
        description.name, num_classes=description.num_classes, image_size=description.image_size,
        input_channels=description.input_channels,
    )  # fmt: skip
    context = mx.gpu(identity.local_rank) if cluster.device == "gpu" else mx.cpu(_cpu_number(identity))
    network = TrainedNetwork(
        table, model=description, loss=recipe.loss, engine=cluster.engine, context=context,
        accumulate=plan.accumulation_steps > 1,
    )  # fmt: skip
    weights = _first_weights(recipe, cluster, table) if kept is None else dict(kept)
    network.load_weights(weights)
    arrays = {"weights": network.weights, "gradients": network.gradients, "masters": network.masters}
    rescale, config, communication = 1 / plan.global_batch_size, recipe.optimizer, cluster.communication
    sizes = [gradient.size * np.dtype(gradient.dtype).itemsize for gradient in network.gradients]
    buckets = plan_reductions(sizes, communication.bucket_bytes, communication.deferred_fraction)
    optimizer = (
        AdamOptimizer(config, table.parameters, rescale=rescale, **arrays)
        if isinstance(config, Adam)
        else MomentumOptimizer(
            config, table.parameters, rescale=rescale, arrivals=buckets.arrivals(cluster.engine.update_groups), **arrays
        )
    )
    return Model(network, optimizer, weights, buckets, context)


def _first_weights(recipe: Recipe, cluster: Cluster, table: Network) -> dict[str, np.ndarray]:
    """Draw weights, and take those that are given."""
    drawn = initial_weights(table, recipe.model, recipe.run.seed)
    if recipe.model.parameters is None:
        return drawn
    from train.engine.mxnet.parameters import load_parameters  # noqa: PLC0415 (imports MXNet)

    return load_parameters(resolve_path(cluster.paths.data) / recipe.model.parameters, table, drawn)


def dropout_seed(seed: int, rank: int, step: int) -> int:
    """Give what a rank's dropout draws from in a step of a run with ``seed``; MXNet's seeds have 31 bits."""
    return stream_seed(seed, f"dropout, step {step}", rank) % 2**31


def _cpu_number(identity: Identity) -> int:
    """Give devices of one process numbers of their own, so that each gets threads of its own from the engine."""
    return identity.local_rank if identity.launcher == "devices" else 0
