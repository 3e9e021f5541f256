"""What each layer costs on an accelerator: arithmetic or memory traffic, whichever is slower, plus a launch.

A convolution's time is max(FLOPs / reached peak, bytes / reached bandwidth); other layers only move bytes. Two things
cost more the smaller the batch: a launch a kernel, and the last wave of tiles, which on average leaves half of the
multiprocessors idle once. Rows come from `train.networks.arch`, so that what is simulated is what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.networks.arch import Layer, Network
from train.sim.constants import Constants
from train.sim.hardware import Machine

__all__ = ["KernelTable", "kernel_times", "tabulate", "update_time"]

Array = npt.NDArray[np.float64]
_TILE = 128 * 128
"""Outputs of a matrix kernel's usual tile."""
_UPDATE_BYTES = 26
"""A parameter's traffic in LARS: 32-bit weight and momentum read and written, gradient read, 16-bit weight written,
and weight and gradient read once more for their norms."""


@dataclass(frozen=True)
class KernelTable:
    """Kernels of one pass in the order in which they run; all arrays have one entry a kernel.

    Args:
        names: ``layer`` or ``layer/part``.
        flops: An image.
        numbers: Read or written, an image.
        weights: Numbers read or written whatever the batch.
        tiles: Matrix tiles an image; 0 for kernels that only move bytes.
        fresh: Of the numbers, those read that this kernel or the one before has just touched, an image.
        span: Numbers an image between the two touches: what a cache must hold for the second to find it.
        layer: Index into the network's layers.
    """

    names: tuple[str, ...]
    flops: Array
    numbers: Array
    weights: Array
    tiles: Array
    fresh: Array
    span: Array
    layer: npt.NDArray[np.int64]


_Row = tuple[str, float, float, float, float, float, float, int]


def tabulate(network: Network) -> tuple[KernelTable, KernelTable]:
    """Give the kernels of the forward and of the backward pass; ReLU and addition are fused into their batch norm."""
    forward: list[_Row] = []
    backward: list[_Row] = []
    for index, layer in enumerate(network.layers):
        there = _forward(layer, index)
        forward += there
        backward = _backward(layer, index, is_first=index == 0) + backward
    return _table(forward), _table(backward)


def _forward(layer: Layer, index: int) -> list[_Row]:
    read, made = layer.in_channels * layer.in_size**2, layer.output_elements
    if layer.kind in ("conv", "dense"):
        return [(layer.name, 2.0 * layer.macs, read + made, _weights(layer), made / _TILE, read, read, index)]
    if layer.kind == "relu":
        return []
    # An addition is fused into the batch norm before it: one more operand to read.
    numbers = {"bn": 2.0 * made, "add": 1.0 * made}.get(layer.kind, read + made)
    fresh = 0.0 if layer.kind == "add" else read
    return [(layer.name, 0.0, numbers, 0.0, 0.0, fresh, read, index)]


def _backward(layer: Layer, index: int, *, is_first: bool) -> list[_Row]:
    read, made = layer.in_channels * layer.in_size**2, layer.output_elements
    if layer.kind in ("conv", "dense"):
        weights = _weights(layer)
        for_weights = (f"{layer.name}/weight", 2.0 * layer.macs, read + made, weights, 0.0, made, made + read, index)
        for_data = (f"{layer.name}/data", 2.0 * layer.macs, read + made, weights, read / _TILE, made, made, index)
        return [for_weights] if is_first else [for_data, for_weights]
    if layer.kind == "relu":
        return []
    numbers = {"bn": 5.0 * made, "add": 2.0 * made}.get(layer.kind, read + made)
    # A batch norm reads its gradient and its input for the sums, then both again.
    fresh, span = (3.0 * made, 2.0 * made) if layer.kind == "bn" else (1.0 * made, 1.0 * made)
    return [(layer.name, 0.0, numbers, 0.0, 0.0, fresh, span, index)]


def _weights(layer: Layer) -> float:
    return float(sum(parameter.size for parameter in layer.parameters))


def _table(rows: list[_Row]) -> KernelTable:
    names, *columns, layer = zip(*rows, strict=True)
    flops, numbers, weights, tiles, fresh, span = (np.array(column, dtype=np.float64) for column in columns)
    return KernelTable(names, flops, numbers, weights, tiles, fresh, span, np.array(layer))


def kernel_times(
    table: KernelTable, machine: Machine, batch: float, constants: Constants, norm_traffic: float = 1.0
) -> Array:
    """Predict each kernel's seconds for ``batch`` images on one accelerator."""
    units = machine.accelerator.units
    arithmetic = batch * table.flops / (machine.peak * constants.compute_efficiency)
    tiles = np.maximum(batch * table.tiles, 1e-9)
    arithmetic = np.where(table.tiles > 0, arithmetic * (1 + constants.tail * units / tiles), arithmetic)
    held = constants.cache_share * machine.accelerator.cache
    found = table.fresh * np.minimum(1.0, held / (machine.bytes_per_number * batch * table.span))
    numbers = np.where(table.flops > 0, 1.0, norm_traffic) * (table.numbers - found)
    traffic = machine.bytes_per_number * (batch * numbers + table.weights)
    memory = traffic / (machine.accelerator.memory * constants.memory_efficiency)
    return np.asarray(constants.kernel_s + np.maximum(arithmetic, memory))


def update_time(parameters: int, machine: Machine, constants: Constants) -> float:
    """Predict the optimizer's seconds: it only moves bytes."""
    return _UPDATE_BYTES * parameters / (machine.accelerator.memory * constants.memory_efficiency)
