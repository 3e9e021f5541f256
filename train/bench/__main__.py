"""``./run.sh bench NAME``: answer one measured question with a table for people and JSON rows for tools.

``--help`` works before anything is installed: only the standard library and what needs nothing else is imported here.
Every other import comes after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from configs.arguments import Parser
from configs.errors import UserError, nearest
from train.bench.bench_options import BENCHES

if TYPE_CHECKING:
    from train.bench.measure import Report

_RESULTS = Path(__file__).parents[2] / "runs" / "bench"


class Bench(Protocol):
    """A module that answers one question; `train.bench.bench_options` has the options."""

    def measure(self, options: argparse.Namespace) -> Report:
        """Measure, and return the figures.

        Raises:
            UserError: An option is wrong, or something is missing on this machine.
            MeasurementFailed: A job that was to be measured failed.
        """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bench.

    Returns:
        The exit status: 0 if it is done, 1 if a measurement failed, 2 if the input is wrong, 130 if interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return _run(_parse(words[words[:1] == ["bench"] :]))  # run.sh passes the verb too.
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parse(words: Sequence[str]) -> argparse.Namespace:
    if words and not words[0].startswith("-") and words[0] not in BENCHES:
        raise UserError(f"{words[0]}: no such bench; {nearest(words[0], BENCHES)}")
    options: argparse.Namespace = _parser().parse_args(words)
    return options


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh bench", description="Answer one measured question with a table, and with JSON rows in a file."
    )
    verbs = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, bench in BENCHES.items():
        verb = verbs.add_parser(name, help=bench.question, description=f"Measures {bench.question}.")
        bench.add_options(verb)
        if bench.only_here:
            verb.add_argument("--cluster", type=partial(_refuse_cluster, name), help=argparse.SUPPRESS)
        verb.add_argument("--json", action="store_true", help="print JSON instead of the table")
        verb.add_argument("--output", metavar="FILE", type=Path, help="JSON file (default: runs/bench/NAME-TIME.json)")
    return parser


def _refuse_cluster(name: str, _: str) -> NoReturn:
    others = ", ".join(other for other, bench in BENCHES.items() if not bench.only_here)
    raise argparse.ArgumentTypeError(f"bench {name} takes none, because {BENCHES[name].only_here}; others do: {others}")


def _run(options: argparse.Namespace) -> int:
    """Run the bench, write the JSON file, and print the result.

    Raises:
        UserError: An option is wrong, something is missing, or the file cannot be written.
    """
    from configs.registry import require_engine
    from logs.disk import explain_disk_errors, write_json
    from train.bench.machine_use import MachineUseMeter
    from train.bench.measure import MeasurementFailed

    if engine := BENCHES[options.name].needs:
        require_engine(engine)
    bench = cast(Bench, importlib.import_module(BENCHES[options.name].module))
    meter = MachineUseMeter()
    try:
        report = bench.measure(options).with_use(meter.read())
    except MeasurementFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    output = options.output or _RESULTS / f"{options.name}-{datetime.now():%Y%m%d-%H%M%S}.json"
    tree = {"bench": options.name, "time": datetime.now().astimezone().isoformat(), **report.to_json()}
    with explain_disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, tree)
    sys.stdout.write((json.dumps(tree, indent=1) if options.json else f"{_text(report)}\n{output}") + "\n")
    return 0


def _text(report: Report) -> str:
    from configs.table import table
    from train.bench.measure import CONFIDENCE

    titles = ["alternative", "figure", "median", f"{CONFIDENCE:.0%} interval", "low", "high", "n", "verdict"]
    cells = [
        [row.alternative, row.figure, row.median, _span(row.interval), row.low, row.high, row.n, row.verdict]
        for row in report.rows
    ]
    return "\n".join([table(cells, titles), *(f"- {note}" for note in report.notes)])


def _span(interval: tuple[float, float] | None) -> str:
    return "too few" if interval is None else f"{interval[0]:,.4g} to {interval[1]:,.4g}"


if __name__ == "__main__":
    sys.exit(main())
