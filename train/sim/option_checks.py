"""Checks of the options of ``./run.sh simulate`` whose values the parser cannot judge."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError, UserError, nearest
from train.sim.grid import check_algorithm

_QUESTIONS = ("calibrate_here", "calibrate", "points", "validate", "startup", "collectives", "sweep", "optimize")
"""Options of which a command answers one."""
_WITHOUT_RECIPE = _QUESTIONS[:5]
_NEEDED: dict[str, tuple[str, ...]] = {
    "deadline": ("optimize",),
    "budget": ("optimize",),
    "held_out": ("validate",),
    "worth": ("validate",),
    "plot": ("sweep", "optimize", "collectives", "validate"),
    "out": ("calibrate", "calibrate_here", "held_out"),
    "trace": ("recipe",),
}
"""Option -> those of which it needs one."""
ROUNDS = ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0")
"""MLPerf's rounds with ResNet-50."""
_ABOVE_ZERO = {
    "input_rate": "images/s above 0",
    "deadline": "seconds above 0",
    "budget": "accelerator hours above 0",
}


def check_options(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option has a value that makes no sense."""
    if options.round is not None and options.round not in ROUNDS:
        raise ConfigError("--round", options.round, f"one of {', '.join(ROUNDS)}", nearest(options.round, ROUNDS))
    for name, allowed in _ABOVE_ZERO.items():
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--{name.replace('_', '-')}", value, allowed)
    if options.price is not None and not (math.isfinite(options.price) and options.price >= 0):
        raise ConfigError("--price", options.price, "the price of an accelerator hour, 0 or more")
    if options.algorithm is not None:
        check_algorithm("--algorithm", options.algorithm)
    _check_combination({name: value for name, value in vars(options).items() if value not in (None, False, [])})


def _check_combination(given: Mapping[str, Any]) -> None:
    """Raise `UserError` if the options ask for two things, or if one of them would change nothing."""
    asked = [name for name in _QUESTIONS if name in given]
    if "recipe" in given and set(asked) & set(_WITHOUT_RECIPE):
        asked.append("recipe")
    if len(asked) > 1:
        raise UserError(f"got {' and '.join(map(_option, asked))}, allowed: one of them at a time")
    if "held_out" in given and "worth" in given:
        raise UserError("got --held-out and --worth, allowed: one of them at a time")
    for name, needed in _NEEDED.items():
        if name in given and not set(needed) & given.keys():
            raise UserError(f"{_option(name)}: allowed only together with {' or '.join(map(_option, needed))}")
    out = given.get("out")
    if out is not None and "calibrate_here" not in given and not out.parent.is_dir():
        raise ConfigError("--out", str(out), f"a file in a folder that exists, not in {out.parent}")


def _option(name: str) -> str:
    return "RECIPE" if name == "recipe" else f"--{name.replace('_', '-')}"
