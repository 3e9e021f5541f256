"""The engine of one rank on this CPU, for tests that need its verbs."""

from __future__ import annotations

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
