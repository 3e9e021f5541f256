"""Engines and small networks on this CPU, for tests that run under each installed framework."""

from typing import Any

import numpy as np
import pytest

from configs.load import load_both, load_cluster
from configs.registry import has_engine
from configs.schema import Recipe
from train.engine.init import initial_weights
from train.engine.protocol import Array, Engine, TrainableNetwork, open_engine
from train.networks.arch import Network, network_of
from train.rank.identity import Identity

ALONE = Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")

BOTH = [
    pytest.param(name, marks=pytest.mark.skipif(not has_engine(name), reason=f"{name} is not installed"))
    for name in ("mxnet", "torch")
]
"""The parameters of a test that runs under every engine."""
each_engine = pytest.mark.parametrize("name", BOTH)


def cpu_engine(name: str | None = None) -> Engine:
    """Open an engine; if no name is given, the first one that is installed."""
    return open_engine(load_cluster("laptop", [f"cluster.engine.name={name}"] if name else []), ALONE)


def small_network(
    name: str, *overrides: str, table: Network | None = None, accumulate: bool = False, **settings: str
) -> tuple[Any, Recipe, Any]:
    """Give engine, recipe and a network with seeded weights; without other overrides, resnet8 on 16 px.

    Args:
        name: The engine.
        overrides: Of recipe and cluster.
        table: The layers. If None, those of the recipe's network.
        accumulate: Add each backward to the gradients.
        settings: Of the block ``engine``; also those that a cluster file on a CPU may not have, such as a layout.
    """
    given = ["model.name=resnet8", "model.image_size=16", f"cluster.engine.name={name}", *overrides]
    recipe, cluster = load_both("digits", "laptop", given)
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update=settings)})
    engine, table = open_engine(cluster, ALONE), table or network_of(recipe.model)
    network = engine.build_network(table, recipe, accumulate=accumulate)
    network.load_weights(initial_weights(table, recipe.model, seed=1))
    return engine, recipe, network


def random_batch(engine: Engine, network: TrainableNetwork, size: int = 8, seed: int = 0) -> tuple[Array, Array]:
    """Give random images in the network's layout, and labels."""
    draw = np.random.default_rng(seed)
    images = draw.standard_normal((size, *_channels_first(network.image_shape)), np.float32)
    if images.shape[1:] != network.image_shape:
        images = images.transpose(0, 2, 3, 1)
    return engine.from_host(images), engine.from_host(draw.integers(0, 10, size).astype(np.float32))


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if shape[1] == shape[2] else (shape[2], *shape[:2])


def forward_backward(network: TrainableNetwork, images: Array, labels: Array) -> Array:
    """Queue one micro-batch; return the sum of its losses."""
    loss = network.forward(images, labels)
    network.backward()
    return loss


def randomize(network: Any, table: Network, weights: dict[str, np.ndarray], seed: int = 3) -> dict[str, np.ndarray]:
    """Load running statistics and batch-norm parameters that differ from layer to layer; return all that is loaded."""
    draw, loaded = np.random.default_rng(seed), dict(weights)
    for key, array in weights.items():
        if key.endswith("_gamma"):
            loaded[key] = draw.uniform(0.5, 1.5, array.shape).astype(np.float32)
        elif key.endswith(("_beta", "_bias")):
            loaded[key] = draw.normal(0, 0.3, array.shape).astype(np.float32)
    for layer in table.layers:
        if layer.kind.name == "bn":
            loaded[f"{layer.name}_moving_mean"] = draw.normal(0, 0.3, layer.out_channels).astype(np.float32)
            loaded[f"{layer.name}_moving_var"] = draw.uniform(0.5, 2.0, layer.out_channels).astype(np.float32)
    network.load_weights(loaded)
    return loaded
