"""The time of each kernel on an accelerator: the slower of arithmetic and memory traffic, plus a launch.

The time of a convolution is max(FLOPs / reached peak, bytes / reached bandwidth); other layers only move bytes. Two
costs weigh more the smaller the batch is: the launch of each kernel, and the last wave of tiles, which on average
leaves half of the multiprocessors idle. The layers come from `train.networks.arch`, which training uses too.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train.networks.arch import Network
from train.networks.layer import Layer, Traffic
from train.sim.constants import Constants
from train.sim.hardware import Machine

Array = npt.NDArray[np.float64]
_TILE = 128 * 128
"""Outputs in a usual tile of a matrix kernel."""
_UPDATE_BYTES = 26
"""Bytes that LARS moves for each parameter: the 32-bit weight and momentum are read and written, the gradient is read,
the 16-bit weight is written, and weight and gradient are read once more for their norms."""


class KernelTable(NamedTuple):
    """Kernels of one pass in the order in which they run. All arrays have one entry for each kernel.

    Numbers (of tensors) become bytes when `kernel_times` multiplies them by the bytes of the precision.

    Args:
        names: ``layer`` or ``layer/part``.
        layer: Index into the network's layers.
        numbers: Numbers read or written for each image.
        fresh: Of ``numbers``, those that this kernel or the one before has just read or written, for each image.
        span: Numbers for each image between the two uses of a fresh number: a cache that holds them saves the second
            reading.
        flops: FLOPs for each image.
        plain_flops: The same without matrix units, where kernels of small filters multiply less (Winograd).
        weights: Numbers read or written once, whatever the batch.
        tiles: Matrix tiles for each image; 0 for kernels that only move bytes.
    """

    names: tuple[str, ...]
    layer: npt.NDArray[np.int64]
    numbers: Array
    fresh: Array
    span: Array
    flops: Array
    plain_flops: Array
    weights: Array
    tiles: Array


class _Kernel(NamedTuple):
    """One entry of each field of `KernelTable`, in the same order."""

    name: str
    layer: int
    numbers: float
    fresh: float
    span: float
    flops: float = 0.0
    plain_flops: float = 0.0
    weights: float = 0.0
    tiles: float = 0.0


def tabulate(network: Network) -> tuple[KernelTable, KernelTable]:
    """Return the kernels of forward and of backward; ReLU and addition are fused into the batch norm before them."""
    forward: list[_Kernel] = []
    backward: list[_Kernel] = []
    for index, layer in enumerate(network.layers):
        forward += _forward(layer, index)
        backward = _backward(layer, index, is_first=index == 0) + backward
    return _table(forward), _table(backward)


def _forward(layer: Layer, index: int) -> list[_Kernel]:
    if layer.macs:
        read = layer.input_elements
        return [_product(layer, index, layer.name, fresh=read, span=read, outputs=layer.output_elements)]
    return _sweep(layer, index, layer.kind.forward, fresh=layer.input_elements)


def _backward(layer: Layer, index: int, *, is_first: bool) -> list[_Kernel]:
    if layer.macs:
        read, made = layer.input_elements, layer.output_elements
        for_data = _product(layer, index, f"{layer.name}/data", fresh=made, span=made, outputs=read)
        for_weights = _product(layer, index, f"{layer.name}/weight", fresh=made, span=made + read, outputs=0)
        # The gradient of the images is not needed.
        return [for_weights] if is_first else [for_data, for_weights]
    return _sweep(layer, index, layer.kind.backward, fresh=layer.output_elements)


def _sweep(layer: Layer, index: int, traffic: Traffic | None, *, fresh: float) -> list[_Kernel]:
    """Return the kernel of a layer without products, if it has one; ``fresh`` are those without a given traffic."""
    if not layer.kind.has_kernel:
        return []
    if traffic is None:
        traffic = Traffic(layer.input_elements + layer.output_elements, fresh, span=fresh)
    else:
        traffic = Traffic(*(each * layer.output_elements for each in traffic))
    return [_Kernel(layer.name, index, *traffic)]


def _product(layer: Layer, index: int, name: str, *, fresh: float, span: float, outputs: float) -> _Kernel:
    """Return a kernel of matrix products; ``outputs`` are those for each image, in tiles."""
    return _Kernel(
        name,
        index,
        numbers=layer.input_elements + layer.output_elements,
        fresh=fresh,
        span=span,
        flops=2.0 * layer.macs,
        plain_flops=2.0 * layer.macs / layer.kind.spared(layer),
        weights=float(sum(parameter.size for parameter in layer.parameters)),
        tiles=outputs / _TILE,
    )


def _table(kernels: list[_Kernel]) -> KernelTable:
    names, layers, *columns = zip(*kernels, strict=True)
    return KernelTable(names, np.array(layers), *(np.array(column, dtype=np.float64) for column in columns))


def kernel_times(
    table: KernelTable,
    machine: Machine,
    batch: float,
    constants: Constants,
    *,
    norm_traffic: float = 1.0,
    unit_bytes_per_s: float = math.inf,
) -> Array:
    """Return the seconds of each kernel on one accelerator.

    Args:
        table: The kernels.
        machine: Its accelerator and precision.
        batch: Images of one rank.
        constants: Calibrated.
        norm_traffic: Factor on the bytes that kernels without arithmetic move, see `train.sim.software.Software`.
        unit_bytes_per_s: Most bytes/s that such a kernel moves in a multiprocessor.
    """
    units = machine.accelerator.units
    if machine.uses_matrix_units:
        arithmetic = batch * table.flops / (machine.peak * constants.compute_efficiency)
    else:
        arithmetic = batch * table.plain_flops / (machine.peak * constants.plain_efficiency)
    tiles = np.maximum(batch * table.tiles, 1e-9)
    arithmetic = np.where(table.tiles > 0, arithmetic * (1 + constants.tail * units / tiles), arithmetic)
    held = constants.cache_share * machine.accelerator.cache
    found = table.fresh * np.minimum(1.0, held / (machine.bytes_per_number * batch * table.span))
    numbers = np.where(table.flops > 0, 1.0, norm_traffic) * (table.numbers - found)
    traffic = machine.bytes_per_number * (batch * numbers + table.weights)
    bandwidth = machine.accelerator.memory * constants.memory_efficiency
    memory = traffic / np.where(table.flops > 0, bandwidth, min(bandwidth, units * unit_bytes_per_s))
    return np.asarray(constants.kernel_s + np.maximum(arithmetic, memory))


def update_time(parameters: int, machine: Machine, constants: Constants) -> float:
    """Return the seconds of the optimizer's update, which only moves bytes."""
    return _UPDATE_BYTES * parameters / (machine.accelerator.memory * constants.memory_efficiency)
