"""The fitted constants of the simulator. `train.sim.fit.calibrate` writes constants.yaml; all other modules read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs.load import parse_yaml

__all__ = ["CLASS_WIDTHS", "CONSTANTS", "Calibration", "Constants", "load_calibration", "log_compute_factor"]

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
        cycle_cpu_s: Core time that one look for ready gradients takes away from the compute on the same core.
        decode_s: Core time that decoding an image takes away from the compute on the same core.
        effects: Logarithm of a factor on compute time, by the group that the factor belongs to: ``chip:A100``,
            ``round:A100/2.1``, ...
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
    cycle_cpu_s: float = 0.0
    decode_s: float = 0.0
    effects: dict[str, float] = field(default_factory=dict)

    def replaced(self, **values: Any) -> Constants:
        """Return a copy with some values changed."""
        return replace(self, **values)


@dataclass(frozen=True)
class Calibration:
    """Fitted constants, and how far predictions with them have been off.

    Args:
        constants: The constants fitted to all points.
        coverage: Share of measured points that an interval should contain.
        half_widths: Half-width of the interval in log images/s, measured on held-out points. ``seen``: the points have
            the chip at this number of accelerators or more; ``larger``: they have the chip only in smaller systems;
            ``unseen``: they do not have the chip.
        largest: Chip -> accelerators of the largest system in the points.
        rounds: Chip -> newest MLPerf round in the points.
    """

    constants: Constants
    coverage: float = 0.9
    half_widths: dict[str, float] = field(default_factory=lambda: {"seen": 0.1, "larger": 0.2, "unseen": 0.5})
    largest: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, str] = field(default_factory=dict)

    def spread(self, chip: str, ranks: int, classes: Sequence[str]) -> tuple[str, float]:
        """Return the basis and the half-width of `interval`, widened by each of ``classes``.

        Args:
            chip: Generation of the accelerator.
            ranks: Number of accelerators.
            classes: Keys of `CLASS_WIDTHS` that apply to the forecast.
        """
        basis, width = self.interval(chip, ranks)
        return basis, math.sqrt(width**2 + sum(CLASS_WIDTHS[name] ** 2 for name in classes))

    def interval(self, chip: str, ranks: int) -> tuple[str, float]:
        """Return the key of ``half_widths`` that applies to ``ranks`` accelerators, and the half-width."""
        largest = self.largest.get(chip)
        if largest is None:
            return "unseen", self.half_widths["unseen"]
        seen, larger = self.half_widths["seen"], self.half_widths["larger"]
        if ranks <= largest:
            return "seen", seen
        return "larger", max(seen, larger) * max(1.0, math.log2(ranks / largest) / _DOUBLINGS)


CLASS_WIDTHS = {"own kernels": 0.25, "another network": 0.25, "float32": 0.30}
"""What a forecast lacks that every measured point has -> half-width that this adds, in log images/s. The points are all
of MLPerf's tuned programs, of ResNet-50, and in 16 bits. The widths are assumed, not conformal: they contain the
published rates of frameworks in docs/simulator.md."""
_DOUBLINGS = 4
"""Held-out intervals were measured up to four doublings beyond the largest known system; beyond four, the half-width
grows in proportion to the doublings."""


@cache
def load_calibration() -> Calibration:
    """Return the calibration in constants.yaml."""
    tree = parse_yaml(CONSTANTS.read_text(encoding="utf-8"), CONSTANTS.name)
    constants = Constants(**tree["fitted"], effects=tree["effects"])
    return Calibration(constants, tree["coverage"], tree["half_widths"], tree["largest"], tree["rounds"])


def log_compute_factor(names: Sequence[str], effects: Mapping[str, float]) -> float:
    """Return the logarithm of the factor on compute time: the sum of the effects in ``names``.

    A round without points has the effect of the nearest round of the same chip; any other unknown effect is 0.
    """
    return sum(effects.get(name, 0.0) or _effect_of_nearest_round(name, effects) for name in names)


def _effect_of_nearest_round(name: str, effects: Mapping[str, float]) -> float:
    kind, _, rest = name.partition(":")
    if kind not in ("round", "network") or name in effects:
        return 0.0
    chip, _, wanted = rest.partition("/")
    known = [other for other in effects if other.startswith(f"{kind}:{chip}/")]
    try:
        return effects[min(known, key=lambda each: abs(float(each.rpartition("/")[2]) - float(wanted)))]
    except ValueError:
        # No round of this chip is known, or the wanted round is not a number.
        return 0.0
