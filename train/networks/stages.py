"""How PyTorch's rows are put together: stages that ``engine.compile`` compiles, and fused batch norms. Pure.

Allreduces of a stage overlap with the backward pass of the stages before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from train.comm.buckets import bucket_cap
from train.networks.arch import Network, gradient_bytes
from train.networks.kinds import KINDS
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


BN_RELU = replace(KINDS["bn"], name="bn_relu")
"""A batch norm that ends with a ReLU. As in one without, a second input is added before that."""


def fuse_norms(rows: Sequence[Layer]) -> list[Layer]:
    """Return rows that compute the same with as few batch norms, additions and ReLUs as possible.

    An addition or a ReLU becomes part of a batch norm whose output nothing else reads. The batch norm keeps its name,
    and stands where the last of its rows stood. Of two batch norms before an addition, the first input takes it. A
    frozen batch norm computes no statistics, and stays as it is.

    Args:
        rows: Neighbouring rows of a table; nothing but the last of them is read by other rows.
    """
    reads = Counter(name for row in rows for name in row.inputs)
    readers = {name: row for row in rows for name in row.inputs}
    names: dict[str, str] = {}
    waiting: dict[str, Layer] = {}
    fused: list[Layer] = []
    for each in rows:
        row = replace(each, inputs=tuple(names.get(name, name) for name in each.inputs))
        if row.kind.name in ("add", "relu"):
            row = _joined(row, waiting) or row
            names[each.name] = row.name
        # What was not joined is a row of its own, before its reader.
        fused += [waiting.pop(name) for name in row.inputs if name in waiting]
        takes = ("relu", "add")[: 3 - len(row.inputs)] if row.kind == KINDS["bn"] and not row.is_frozen else ()
        if reads[each.name] == 1 and readers[each.name].kind.name in takes:
            waiting[row.name] = row
        else:
            fused.append(row)
    return fused


def _joined(row: Layer, waiting: dict[str, Layer]) -> Layer | None:
    """Return the batch norm that waits for an addition or a ReLU, with that in it; None if none does."""
    for place, name in enumerate(row.inputs):
        if name in waiting:
            norm, others = waiting.pop(name), row.inputs[:place] + row.inputs[place + 1 :]
            return replace(norm, kind=norm.kind if others else BN_RELU, inputs=norm.inputs + others)
    return None
