"""A bench that measures nothing, for the harness."""

from __future__ import annotations

import argparse

from train.bench.measure import MeasurementFailed, Report, interleave, make_report

PURPOSE = "how the harness works"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--fail", action="store_true")


def measure(arguments: argparse.Namespace) -> Report:
    if arguments.fail:
        raise MeasurementFailed("the ranks died of boredom")
    return make_report(interleave({"nothing": lambda: {"step_ms": 2.0}}, n=arguments.rounds), ["nothing was measured"])
