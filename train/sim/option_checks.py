"""Checks of the options of ``./run.sh simulate`` whose values the parser cannot judge."""

from __future__ import annotations

import argparse
import math

from configs.errors import ConfigError, UserError, nearest
from train.sim.grid import check_algorithm

__all__ = ["ROUNDS", "check_options"]

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
    for name in ("deadline", "budget"):
        if getattr(options, name) is not None and not options.optimize:
            raise ConfigError(f"--{name}", getattr(options, name), f"--{name} together with --optimize")
    if options.held_out and not options.validate:
        raise ConfigError("--held-out", options.held_out, "--held-out together with --validate CSV")
    if options.worth and not options.validate:
        raise UserError("--worth: allowed only together with --validate CSV")
