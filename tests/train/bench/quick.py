"""A bench that measures nothing, for the tests of ``./run.sh bench``."""

import argparse

from train.bench.measure import MeasurementFailed, Report, interleave, make_report


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--fail", action="store_true")


def measure(options: argparse.Namespace) -> Report:
    if options.fail:
        raise MeasurementFailed("no rank was started")
    return make_report(interleave({"nothing": lambda: {"step_ms": 2.0}}, n=options.rounds), ["nothing was measured"])
