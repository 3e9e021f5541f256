"""The fitted constants of the simulator. `train.sim.fit.calibrate` writes constants.yaml; all other modules read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from configs.load import parse_yaml
from train.sim.hardware import Machine

CONSTANTS = Path(__file__).with_name("constants.yaml")


@dataclass(frozen=True)
class Constants:
    """Properties of hardware and software that data sheets do not give.

    Args:
        compute_efficiency: Share of the peak FLOP/s that convolutions reach.
        plain_efficiency: The same without matrix units, of the multiplications that remain with fast algorithms
            for small filters. Set by published float32 rates (docs/simulator.md); the points all have matrix units.
        memory_efficiency: Share of the memory bandwidth that kernels reach.
        cache_share: Share of the last-level cache that holds a tensor until the next kernel reads it.
        kernel_s: Launch and ramp-up of one kernel on the device.
        launch_s: Time that the host adds to each kernel if it launches kernels one by one, without a graph.
        tail: Idle share of the multiprocessors in the last wave of tiles.
        network_efficiency: Share of the network cards' rate that collectives reach.
        straggler: Standard deviation of a rank's step time relative to the mean. The slowest of p ranks takes
            sqrt(2 ln p) times this longer than a typical rank.
        multinode_s: Negotiation and synchronisation in each step if there is more than one node.
        compute_factor: Factor on the time of kernels and of the update, by measured steps of this program; see
            `train.sim.conditions`. Nothing that is fitted to public points.
        cycle_cpu_s: Core time that one look for ready gradients takes away from the compute on the same core.
        decode_s: Core time that decoding an image takes away from the compute on the same core.
        cores: Cores of a node on which its ranks compute. Infinite if each rank has an accelerator.
    """

    compute_efficiency: float = 0.6
    plain_efficiency: float = 0.7
    memory_efficiency: float = 0.8
    cache_share: float = 0.5
    kernel_s: float = 4e-6
    launch_s: float = 1e-5
    tail: float = 0.5
    network_efficiency: float = 0.7
    straggler: float = 0.01
    multinode_s: float = 0.5e-3
    compute_factor: float = 1.0
    cycle_cpu_s: float = 0.0
    decode_s: float = 0.0
    cores: float = math.inf


@dataclass(frozen=True)
class Interval:
    """How far off a forecast may be, as half-widths in the logarithm of a quantity.

    Attributes:
        basis: What of the machine was measured: a key of `Calibration.half_widths`, or ``measured`` if this program's
            own steps were.
        lacks: What the forecast has in common with no measured system; empty, or a key of `Calibration.half_widths`.
        rate: Of images/s.
        time: Of the time to train.
    """

    basis: str
    lacks: str
    rate: float
    time: float


def bounds(value: float, half_width: float) -> tuple[float, float]:
    """Return the ends of an interval with ``half_width`` in the logarithm."""
    return value * math.exp(-half_width), value * math.exp(half_width)


@dataclass(frozen=True)
class Calibration:
    """Fitted constants, and how far predictions with them have been off.

    Args:
        constants: The constants fitted to all points.
        coverage: Share of measured points that an interval should contain.
        half_widths: Class of a forecast -> half-width of its interval in log images/s, measured on points that the fit
            had not seen. ``seen``: the points have the chip at this number of accelerators or more; ``larger``: they
            have the chip only in smaller systems; ``unseen``: they do not have the chip; ``compiler``: chips of other
            makers than NVIDIA. What a forecast may lack: ``own kernels`` of a framework's usual program, in 16 bits;
            ``PyTorch`` in 16 bits; ``float32``; ``another network``; ``tinygrad``, whose kernels no framework shares.
        time_half_widths: The same of the time to train; only for the first four classes.
        startup_half_width: The same of the start-up.
        largest: Chip -> accelerators of the largest system in the points.
        rounds: Chip -> newest MLPerf round in the points.
        measured_half_width: Half-width of images/s and time by measured steps of this program on the machine. If None,
            there are none.
    """

    constants: Constants
    coverage: float
    half_widths: dict[str, float]
    time_half_widths: dict[str, float]
    startup_half_width: float
    largest: dict[str, int]
    rounds: dict[str, str]
    measured_half_width: float | None = None

    def interval(self, machine: Machine, lacks: str = "", unproven: float = 0.0) -> Interval:
        """Return the interval of a forecast.

        Args:
            machine: What the run is predicted for.
            lacks: What the forecast has in common with no measured system; empty, or a key of ``half_widths``.
            unproven: Logarithm of a factor on the rate that no published rate has shown.
        """
        if self.measured_half_width is not None:
            return Interval("measured", "", self.measured_half_width, self.measured_half_width)
        largest = self.largest.get(machine.accelerator.chip)
        doublings = math.log2(machine.ranks / largest) if largest else 0.0
        basis, growth = "unseen", 1.0
        if machine.accelerator.compiler:
            basis, growth = "compiler", 1 + max(0.0, doublings) / _COMPILER_DOUBLINGS
        elif largest is not None:
            basis, growth = ("larger", max(1.0, doublings / _DOUBLINGS)) if doublings > 0 else ("seen", 1.0)
        more = math.hypot(self.half_widths[lacks] if lacks else 0.0, unproven)
        widths = (growth * self.half_widths[basis], growth * self.time_half_widths[basis])
        return Interval(basis, lacks, *(math.hypot(width, more) for width in widths))


_DOUBLINGS = 4
"""Held-out intervals were measured up to four doublings beyond the largest known system; beyond four, the half-width
grows in proportion to the doublings."""
_COMPILER_DOUBLINGS = 4
"""The half-width of chips with a compiler of their own is twice as wide after this many doublings of the largest known
system. The only published rate beyond, 1.05 M images/s on 1,024 TPUv3 (arXiv:1811.06992), is then inside."""


@cache
def load_calibration() -> Calibration:
    """Return the calibration in constants.yaml."""
    tree = parse_yaml(CONSTANTS.read_text(encoding="utf-8"), CONSTANTS.name)
    names = ("coverage", "half_widths", "time_half_widths", "startup_half_width", "largest", "rounds")
    return Calibration(Constants(**tree["fitted"]), **{name: tree[name] for name in names})


_CPU = {"plain_efficiency": 0.4, "memory_efficiency": 0.8, "kernel_s": 40e-6, "launch_s": 0.0, "tail": 0.0}
"""Constants of a CPU, which are assumed and not measured: the rate of oneDNN's convolutions relative to the measured
matrix product, the time of an operator in MXNet's engine, and others."""
_CYCLE_CPU_S = 1e-4
"""Core time of one cycle of an idle Horovod thread, for two ranks with Gloo. Measured: 0.065 to 0.11 of a core at a
cycle of 1 ms, 0.015 of a core at 10 ms."""
_DECODE_S, _DECODE_PIXEL_S = 80e-6, 31e-9
"""Core time of DALI for an image, and for each pixel of the crop. Measured: 82 us at 32 px, 1.65 ms at 224 px."""


def cpu_constants(cores: float, ranks: int, image_size: int) -> dict[str, float]:
    """Return the constants that a CPU has of its own, by name; those of accelerators apply, too.

    Decoding and Horovod's negotiation run in threads of their own. If there are fewer than two cores a rank, these
    threads take core time from compute. If there are fewer cores than ranks, the ranks take turns.

    Args:
        cores: Cores of a node.
        ranks: Ranks of a node.
        image_size: Side of the square input, px.
    """
    shared: dict[str, float] = {}
    if cores < 2 * ranks:
        shared = {"cycle_cpu_s": _CYCLE_CPU_S, "decode_s": _DECODE_S + _DECODE_PIXEL_S * image_size**2}
    return {**_CPU, **shared, "cores": cores}
