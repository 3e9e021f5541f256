"""The few numbers that are fitted, with the physical ones they stand on; `calibrate` writes them, everyone reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs.load import parse_yaml

__all__ = ["CONSTANTS", "Constants", "load_constants"]

CONSTANTS = Path(__file__).with_name("constants.yaml")


@dataclass(frozen=True)
class Constants:
    """What the model cannot know from data sheets.

    Args:
        compute_efficiency: Reached share of the peak FLOP/s in convolutions.
        memory_efficiency: Reached share of the memory bandwidth.
        kernel_s: Launch and ramp of one kernel.
        launch_s: What the host adds a kernel where it launches them one by one (no graph).
        tail: Idle share of the last wave of tiles.
        network_efficiency: Reached share of the network cards' rate.
        straggler: Relative spread of one rank's step, of which the slowest of p ranks shows sqrt(2 ln p).
        multinode_s: Negotiation and synchronisation a step as soon as there is a second node.
        effects: Logarithm of a factor on compute time, by what it belongs to (chip:A100, round:A100/2.1, ...).
    """

    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8
    kernel_s: float = 4e-6
    launch_s: float = 6e-6
    tail: float = 0.5
    network_efficiency: float = 0.7
    straggler: float = 0.01
    multinode_s: float = 0.5e-3
    effects: dict[str, float] = field(default_factory=dict)

    def replaced(self, **values: Any) -> Constants:
        """The same with some values changed."""
        return replace(self, **values)


@cache
def load_constants() -> Constants:
    """Read the calibrated constants that came with the program."""
    tree = parse_yaml(CONSTANTS.read_text(encoding="utf-8"), CONSTANTS.name)
    return Constants(**tree["fitted"], effects=tree["effects"])
