"""The time of each kernel on an accelerator: the slower of arithmetic and memory traffic, plus a launch.

The time of a convolution is max(FLOPs / reached peak, bytes / reached bandwidth); other layers only move bytes. Two
costs weigh more the smaller the batch is: the launch of each kernel, and the last wave of tiles, which on average
leaves half of the multiprocessors idle. The layers come from `train.networks.arch`, which training uses too.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train.networks.arch import Network
from train.networks.layer import Layer, Traffic
from train.sim.constants import Constants
from train.sim.hardware import Machine
from train.sim.software import Software

Array = npt.NDArray[np.float64]
KernelTable = npt.NDArray[np.void]
"""Kernels of one pass in the order in which they run; ``table["flops"]`` is the column of a field of `Kernel`."""

_TILE = 128 * 128
"""Outputs in a usual tile of a matrix kernel."""
_UPDATE_BYTES = 26
"""Bytes that LARS moves for each parameter: the 32-bit weight and momentum are read and written, the gradient is read,
the 16-bit weight is written, and weight and gradient are read once more for their norms."""


class Kernel(NamedTuple):
    """A row of a `KernelTable`.

    Numbers (of tensors) become bytes when `kernel_times` multiplies them by the bytes of the precision.

    Attributes:
        name: ``layer`` or ``layer/part``.
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
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    for index, layer in enumerate(network.layers):
        read, made = float(layer.input_elements), float(layer.output_elements)
        if layer.macs:
            forward.append(_product(layer, index, layer.name, fresh=read, span=read, outputs=made))
            for_weights = _product(layer, index, f"{layer.name}/weight", fresh=made, span=made + read, outputs=0)
            for_data = _product(layer, index, f"{layer.name}/data", fresh=made, span=made, outputs=read)
            # The gradient of the images is not needed. The layers of backward follow in the opposite order.
            backward += [for_weights, for_data] if index else [for_weights]
        elif layer.kind.has_kernel:
            forward.append(Kernel(layer.name, index, *_traffic(layer, layer.kind.forward, fresh=read)))
            backward.append(Kernel(layer.name, index, *_traffic(layer, layer.kind.backward, fresh=made)))
    return _table(forward), _table(backward[::-1])


def _traffic(layer: Layer, multiples: Traffic | None, *, fresh: float) -> Traffic:
    """Return what a kernel without products moves; ``fresh`` are the fresh numbers if its kind has no ``multiples``."""
    if multiples is None:
        return Traffic(layer.input_elements + layer.output_elements, fresh, span=fresh)
    return Traffic(*(each * layer.output_elements for each in multiples))


def _product(layer: Layer, index: int, name: str, *, fresh: float, span: float, outputs: float) -> Kernel:
    """Return a kernel of matrix products; ``outputs`` are those for each image, in tiles."""
    return Kernel(
        name,
        index,
        numbers=layer.input_elements + layer.output_elements,
        fresh=fresh,
        span=span,
        flops=2.0 * layer.macs,
        plain_flops=2.0 * layer.macs / layer.kind.spared(layer),
        weights=sum(parameter.size for parameter in layer.parameters),
        tiles=outputs / _TILE,
    )


def _table(kernels: list[Kernel]) -> KernelTable:
    types = [object, np.int64, *[np.float64] * (len(Kernel._fields) - 2)]
    return np.array(kernels, dtype=list(zip(Kernel._fields, types, strict=True)))


def kernel_times(table: KernelTable, machine: Machine, batch: float, constants: Constants, software: Software) -> Array:
    """Return the seconds of each kernel on one accelerator.

    Args:
        table: The kernels.
        machine: Its accelerator and precision.
        batch: Images of one rank.
        constants: Calibrated.
        software: How the program launches kernels, and what those without arithmetic move.
    """
    units, is_product = machine.accelerator.units, table["flops"] > 0
    if machine.uses_matrix_units:
        arithmetic = batch * table["flops"] / (machine.peak * constants.compute_efficiency)
    else:
        arithmetic = batch * table["plain_flops"] / (machine.peak * constants.plain_efficiency)
    tiles = np.maximum(batch * table["tiles"], 1e-9)
    arithmetic = np.where(table["tiles"] > 0, arithmetic * (1 + constants.tail * units / tiles), arithmetic)
    held = constants.cache_share * machine.accelerator.cache
    found = table["fresh"] * np.minimum(1.0, held / (machine.bytes_per_number * batch * table["span"]))
    numbers = np.where(is_product, 1.0, software.norm_traffic) * (table["numbers"] - found)
    traffic = machine.bytes_per_number * (batch * numbers + table["weights"])
    bandwidth = machine.accelerator.memory * constants.memory_efficiency
    memory = traffic / np.where(is_product, bandwidth, min(bandwidth, units * software.unit_bytes_per_s))
    launch_s = 0.0 if software.graphs else constants.launch_s
    return np.asarray(slowdown(machine, constants) * (constants.kernel_s + np.maximum(arithmetic, memory) + launch_s))


def update_time(parameters: int, machine: Machine, constants: Constants) -> float:
    """Return the seconds of the optimizer's update, which only moves bytes."""
    update_s = _UPDATE_BYTES * parameters / (machine.accelerator.memory * constants.memory_efficiency)
    return slowdown(machine, constants) * update_s


def slowdown(machine: Machine, constants: Constants) -> float:
    """Return the factor on the time of kernels and of the update: the ranks of a node share its cores."""
    return constants.compute_factor * max(1.0, min(machine.ranks, machine.accelerator.node) / constants.cores)
