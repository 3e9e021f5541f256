"""The least work of a training step by kind of layer: operations, and bytes that move. Pure: imports no framework.

Every operator counts as a pass of its own over tensors that no cache holds, as a CPU computes them, without fusion.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from train.networks.arch import Network
from train.networks.layer import Layer

UPDATE = "update"
_FLOAT_BYTES = 4

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
    """Return group -> the work of each of its passes in a float32 step of ``batch`` images.

    The groups are those of `train.networks.layer.Kind`, and ``UPDATE``. A convolution has a pass in forward, and two
    in backward: to its input, and to its weights. The images have no gradient.
    """
    work: dict[str, list[Work]] = defaultdict(list)
    for layer in network.layers:
        work[layer.kind.group] += _products(layer, batch) if layer.macs else [_sweep(layer, batch)]
    work[UPDATE].append(Work(0, _FLOAT_BYTES * _UPDATE_PASSES * network.num_parameters))
    return work


def _products(layer: Layer, batch: int) -> list[Work]:
    read, written = batch * layer.input_elements, batch * layer.output_elements
    weights = sum(parameter.size for parameter in layer.parameters)
    once = Work(2 * layer.macs * batch, _FLOAT_BYTES * (read + written + weights))
    return [once] * (2 if layer.inputs == ("data",) else 3)


def _sweep(layer: Layer, batch: int) -> Work:
    passes = layer.kind.passes
    swept = (
        2 * (layer.input_elements + layer.output_elements) if passes is None else sum(passes) * layer.output_elements
    )
    return Work(0, _FLOAT_BYTES * batch * swept)


def floor_s(passes: list[Work], operations_per_s: float, bytes_per_s: float) -> float:
    """Return the least seconds of passes on a core: each is bound by its operations or by its bytes.

    *Source*: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    return sum(max(each.operations / operations_per_s, each.moved_bytes / bytes_per_s) for each in passes)
