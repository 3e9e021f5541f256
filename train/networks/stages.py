"""The stages in which ``engine.compile`` compiles a network: allreduces overlap with the backward pass. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from train.comm.buckets import bucket_cap
from train.networks.arch import Network, gradient_bytes
from train.networks.layer import Layer

if TYPE_CHECKING:
    from configs.schema import Cluster

_MOST_STAGES = 4
"""Stages of a network. Each further one costs the host 0.3 ms in every micro-batch (AMD EPYC, 2026-11)."""


def stages_of(network: Network, cluster: Cluster, bytes_per_number: int) -> list[Sequence[Layer]]:
    """Return the rows of a network in stages that are compiled one by one; without ``engine.compile``, as one stage.

    The gradients of a compiled stage arrive together, at the end of its backward pass. So a stage has about as many
    bytes of gradients as a bucket, and at least a quarter of the network's: its allreduces overlap with the backward
    pass of the stages before it. A stage begins where a single tensor is alive, as between residual blocks, and at no
    batch norm or ReLU, which belong to the kernels of the layer before. A single rank has nothing to overlap.

    Args:
        network: The table of layers.
        cluster: Sizes of buckets, and the number of ranks.
        bytes_per_number: Of a gradient, but those of batch norm.
    """
    if cluster.world_size == 1 or not cluster.engine.compile:
        return [network.layers]
    communication, sizes = cluster.communication, gradient_bytes(network.parameters, bytes_per_number)
    bucket = bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction)
    least = max(bucket, sum(sizes) // _MOST_STAGES)
    stages: list[list[Layer]] = [[]]
    waiting: set[str] = set()
    size = 0
    for row in reversed(network.layers):
        if size >= least and waiting == {row.name} and stages[0][0].kind.begins_stage:
            stages.insert(0, [])
            size = 0
        stages[0].insert(0, row)
        size += sum(gradient_bytes(row.parameters, bytes_per_number))
        waiting = (waiting - {row.name}) | {*row.inputs}
    return [tuple(stage) for stage in stages]
