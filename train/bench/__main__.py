"""``./run.sh bench NAME``: one measured question; a table for people, JSON rows for tools."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, cast

from configs.arguments import Parser
from configs.errors import UserError, nearest
from configs.load import ROOT
from logs.disk import explain_disk_errors, write_json
from train.bench.measure import MeasurementFailed, Report
from train.sim.output.columns import table

_BENCHES = {
    "epoch": "train.bench.bench_epoch",
    "input": "train.bench.bench_input",
    "overlap": "train.bench.bench_overlap",
    "peers": "train.bench.bench_peers",
    "startup": "train.bench.bench_startup",
    "step": "train.bench.bench_step",
}
"""Name -> the module that measures it, by the protocol of `Bench`."""


class Bench(Protocol):
    """A module that answers one question. It imports no framework at its top, so that ``--help`` is quick."""

    PURPOSE: str
    """The question, in one line."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what can be chosen; the defaults answer the question in under five minutes on two cores."""

    def measure(self, arguments: argparse.Namespace) -> Report:
        """Answer it.

        Raises:
            UserError: It cannot be measured here; the text says what is missing.
        """


def _parser() -> Parser:
    parser = Parser(prog="./run.sh bench", description=__doc__)
    verbs = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in _BENCHES.items():
        bench = _load(module)
        verb = verbs.add_parser(name, help=bench.PURPOSE, description=bench.PURPOSE)
        bench.add_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print JSON in place of the table")
        verb.add_argument("--output", metavar="FILE", type=Path, help="JSON file (default: runs/bench/NAME-TIME.json)")
    return parser


def _load(module: str) -> Bench:
    return cast(Bench, importlib.import_module(module))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bench; give its exit status: 0 done, 1 a measurement failed, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        options = _options(words[1:] if words[:1] == ["bench"] else words)  # run.sh passes its verb along.
        report = _load(_BENCHES[options.name]).measure(options)
        output = options.output or ROOT / "runs" / "bench" / f"{options.name}-{datetime.now():%Y%m%d-%H%M%S}.json"
        tree = {"bench": options.name, "time": datetime.now().astimezone().isoformat(), **report.to_json()}
        with explain_disk_errors(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            write_json(output, tree)
        sys.stdout.write((json.dumps(tree, indent=1) if options.json else f"{_text(report)}\n{output}") + "\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except MeasurementFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    if words and not words[0].startswith("-") and words[0] not in _BENCHES:
        raise UserError(f"{words[0]}: no such bench; {nearest(words[0], _BENCHES)}")
    options: argparse.Namespace = _parser().parse_args(words)
    return options


def _text(report: Report) -> str:
    titles = ["alternative", "figure", "median", "low", "high", "n", "warm-up"]
    cells = [[row.alternative, row.figure, row.median, row.low, row.high, row.n, row.warmup] for row in report.rows]
    return "\n".join([table(cells, titles), *(f"- {note}" for note in report.notes)])


if __name__ == "__main__":
    sys.exit(main())
