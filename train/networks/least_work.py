"""The least work of a training step by kind of layer: operations, and bytes that move. Pure: imports no framework.

Every operator counts as a pass of its own over tensors that no cache holds, as a CPU computes them, without fusion.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from train.networks.arch import Layer, Network

UPDATE = "update"
_FLOAT_BYTES = 4

KINDS = {
    "conv": "convolution",
    "bn": "batch norm",
    "relu": "activation, addition, pooling",
    "sigmoid": "activation, addition, pooling",
    "add": "activation, addition, pooling",
    "multiply": "activation, addition, pooling",
    "concat": "activation, addition, pooling",
    "max_pool": "activation, addition, pooling",
    "avg_pool": "activation, addition, pooling",
    "global_pool": "activation, addition, pooling",
    "dropout": "activation, addition, pooling",
    "dense": "classifier and loss",
}
"""`Layer.kind` -> the kind under which its work is counted."""

_PASSES = {
    "bn": (3, 5),
    "relu": (2, 3),
    "sigmoid": (2, 3),
    "add": (3, 0),
    "multiply": (2, 3),
    "concat": (2, 2),
    "dropout": (2, 2),
}
"""`Layer.kind` -> passes over its output in forward and in backward.

Batch norm reads its input once for the statistics and once for its output; in backward it reads input and gradient
twice each. A product reads its input and its gradient once for both inputs' gradients, one of which is a single pixel.
The gradient of an addition is the gradient of its output, which nothing has to copy.
"""

_UPDATE_PASSES = 7
"""Weight and gradient are read for the norms; weight, gradient and momentum are read, weight and momentum written."""


class Work(NamedTuple):
    """Work of one rank that a step cannot avoid.

    Attributes:
        operations: Additions and multiplications.
        moved_bytes: Bytes read and written.
    """

    operations: float
    moved_bytes: float


def work_of_step(network: Network, batch: int) -> Mapping[str, list[Work]]:
    """Return kind -> the work of each of its passes in a float32 step of ``batch`` images; see `KINDS` and ``UPDATE``.

    A convolution has a pass in forward, and two in backward: to its input, and to its weights. The images have no
    gradient.
    """
    work: dict[str, list[Work]] = defaultdict(list)
    for layer in network.layers:
        work[KINDS[layer.kind]] += _products(layer, batch) if layer.macs else [_sweep(layer, batch)]
    work[UPDATE].append(Work(0, _FLOAT_BYTES * _UPDATE_PASSES * network.num_parameters))
    return work


def _products(layer: Layer, batch: int) -> list[Work]:
    read, written = batch * layer.in_channels * layer.in_size**2, batch * layer.output_elements
    weights = sum(parameter.size for parameter in layer.parameters)
    once = Work(2 * layer.macs * batch, _FLOAT_BYTES * (read + written + weights))
    return [once] * (2 if layer.inputs == ("data",) else 3)


def _sweep(layer: Layer, batch: int) -> Work:
    if layer.kind in _PASSES:
        elements = sum(_PASSES[layer.kind]) * layer.output_elements
    else:
        elements = 2 * (layer.in_channels * layer.in_size**2 + layer.output_elements)
    return Work(0, _FLOAT_BYTES * batch * elements)


def floor_s(passes: list[Work], operations_per_s: float, bytes_per_s: float) -> float:
    """Return the least seconds of passes on a core: each is bound by its operations or by its bytes.

    *Source*: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    return sum(max(each.operations / operations_per_s, each.moved_bytes / bytes_per_s) for each in passes)
