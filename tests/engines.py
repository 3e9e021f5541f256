"""The engine of one rank on this CPU, for tests that need its verbs, and what networks of every engine have to do."""

import numpy as np

from configs.load import load_cluster
from train.engine.protocol import Array, Engine, Trainee, open_engine
from train.rank.identity import Identity

ALONE = Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")


def cpu_engine() -> Engine:
    return open_engine(load_cluster("laptop"), ALONE)


def forward_backward(network: Trainee, images: Array, labels: Array) -> Array:
    """Queue one micro-batch; return the sum of its losses."""
    loss = network.forward(images, labels)
    network.backward()
    return loss


def check_statistics_are_restored(network: Trainee) -> None:
    """Expect running statistics as they are loaded, and means of 0 and variances of 1 where only weights are."""
    weights, draw = network.read_weights(), np.random.default_rng(2)
    given = {name: draw.random(array.shape, np.float32) for name, array in network.read_statistics().items()}
    network.load_weights({**weights, **given})
    assert given
    assert all(np.array_equal(array, given[name]) for name, array in network.read_statistics().items())
    network.load_weights(weights)
    assert {name.rpartition("_")[2]: set(array) for name, array in network.read_statistics().items()} == {
        "mean": {0.0}, "var": {1.0},
    }  # fmt: skip
