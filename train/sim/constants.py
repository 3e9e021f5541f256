"""The few numbers that are fitted: `worth` writes them into constants.yaml, everyone reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs.load import parse_yaml

__all__ = ["CONSTANTS", "Calibration", "Constants", "load_calibration", "log_factor"]

CONSTANTS = Path(__file__).with_name("constants.yaml")


@dataclass(frozen=True)
class Constants:
    """What the model cannot know from data sheets.

    Args:
        compute_efficiency: Reached share of the peak FLOP/s in convolutions.
        memory_efficiency: Reached share of the memory bandwidth.
        cache_share: Of the last cache, what holds a tensor until the next kernel reads it.
        kernel_s: Launch and ramp of one kernel.
        launch_s: What the host adds a kernel where it launches them one by one (no graph).
        tail: Idle share of the last wave of tiles.
        network_efficiency: Reached share of the network cards' rate.
        straggler: Relative spread of one rank's step, of which the slowest of p ranks shows sqrt(2 ln p).
        multinode_s: Negotiation and synchronisation a step as soon as there is a second node.
        cycle_cpu_s: Of a core, what a look for ready gradients takes from the compute on it.
        decode_s: Of a core, what an image's decoding takes from the compute on it.
        effects: Logarithm of a factor on compute time, by what it belongs to (chip:A100, round:A100/2.1, ...).
    """

    compute_efficiency: float = 0.6
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
        """The same with some values changed."""
        return replace(self, **values)


@dataclass(frozen=True)
class Calibration:
    """Constants with what is known of their worth.

    Args:
        constants: Fitted to all points.
        coverage: Share of measured points that an interval is to hold.
        half_widths: Of the interval in log images/s, by how much was known (``seen``: the chip, at this scale;
            ``larger``: the chip, on smaller systems; ``unseen``: not even the chip), from held-out points.
        largest: Most accelerators of a chip in the points.
        rounds: Newest software round of a chip in the points.
    """

    constants: Constants
    coverage: float = 0.9
    half_widths: dict[str, float] = field(default_factory=lambda: {"seen": 0.1, "larger": 0.2, "unseen": 0.5})
    largest: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, str] = field(default_factory=dict)

    def interval(self, chip: str, ranks: int) -> tuple[str, float]:
        """Say how much was known of ``ranks`` accelerators of a chip, and give the half-width in log images/s."""
        largest = self.largest.get(chip)
        if largest is None:
            return "unseen", self.half_widths["unseen"]
        seen, larger = self.half_widths["seen"], self.half_widths["larger"]
        if ranks <= largest:
            return "seen", seen
        return "larger", max(seen, larger) * max(1.0, math.log2(ranks / largest) / _DOUBLINGS)


_DOUBLINGS = 4
"""Doublings beyond the largest known system over which held-out intervals were measured; wider in proportion after."""


@cache
def load_calibration() -> Calibration:
    """Read the calibration that came with the program."""
    tree = parse_yaml(CONSTANTS.read_text(encoding="utf-8"), CONSTANTS.name)
    constants = Constants(**tree["fitted"], effects=tree["effects"])
    return Calibration(constants, tree["coverage"], tree["half_widths"], tree["largest"], tree["rounds"])


def log_factor(names: Sequence[str], effects: Mapping[str, float]) -> float:
    """Add up the effects that apply; a round without points takes that of the chip's nearest round."""
    return sum(effects.get(name, 0.0) or _nearest_round(name, effects) for name in names)


def _nearest_round(name: str, effects: Mapping[str, float]) -> float:
    kind, _, rest = name.partition(":")
    if kind not in ("round", "network") or name in effects:
        return 0.0
    chip, _, wanted = rest.partition("/")
    known = [other for other in effects if other.startswith(f"{kind}:{chip}/")]
    try:
        return effects[min(known, key=lambda each: abs(float(each.rpartition("/")[2]) - float(wanted)))]
    except ValueError:
        return 0.0
