"""``./run.sh bench NAME``: answer one measured question with a table for people and JSON rows for tools.

``--help`` works before anything is installed: the modules of the benches import only the standard library, and what
needs nothing else, at their top.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import Parser, add_options, add_place, exit_status, parse
from configs.errors import REFUSED_STATUS, UserError
from train.bench.bench_allreduce import AllreduceBench
from train.bench.bench_gpu import GpuBench
from train.bench.bench_overlap import OverlapBench
from train.bench.bench_peers import PeersBench, RaceBench
from train.bench.bench_startup import StartupBench
from train.bench.bench_step import StepBench
from train.bench.measure import Bench, PlaceOptions

if TYPE_CHECKING:
    from train.bench.measure import Report

RESULTS = Path(__file__).parents[2] / "runs" / "bench"
"""Folder of the JSON files."""

BENCHES: dict[str, type[Bench]] = {
    "allreduce": AllreduceBench,
    "gpu": GpuBench,
    "overlap": OverlapBench,
    "peers": PeersBench,
    "race": RaceBench,
    "startup": StartupBench,
    "step": StepBench,
}
"""Name -> bench."""

_PACKAGES = {"PIL": "Pillow", "yaml": "PyYAML"} | {
    name: name.replace("_", "-")
    for name in (
        "annotated_types", "mlperf_logging", "numpy", "psutil", "pydantic", "pydantic_core", "tqdm", "typing_inspection"
    )
}  # fmt: skip
"""Module -> package: what every bench imports. A Python that PYTHONPATH leads to this program may lack some."""

_NOTICED = 0.1
"""Share of the processors from which on the load of the minute before a bench is worth a note."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bench.

    Returns:
        The exit status, see `configs.arguments.exit_status`; also 1 if a measurement failed or nothing was measured.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_status(lambda: _run(*read_command(arguments)))


def read_command(arguments: Sequence[str] | None = None) -> tuple[Bench, str, bool, Path | None]:
    """Return what ``./run.sh bench`` is told: the bench with its options, its name, ``--json`` and ``--output``.

    Raises:
        UserError: No bench has the name, or an option is wrong.
    """

    def command(name: str, *, json: bool, output: Path | None, **own: Any) -> tuple[Bench, str, bool, Path | None]:
        return BENCHES[name](**own), name, json, output

    return parse(_parser(), command, arguments)


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh bench", description="Measure the answer to one question: a table, and JSON rows in a file."
    )
    verbs = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, bench in BENCHES.items():
        verb = verbs.add_parser(name, help=bench.question, description=f"Measures {bench.question}.")
        add_options(verb, bench)
        if issubclass(bench, PlaceOptions):
            add_place(verb, cluster=bench.usual_cluster, default_name=bench.usual_cluster)
        verb.add_argument("--json", action="store_true", help="print JSON instead of the table")
        verb.add_argument("--output", metavar="FILE", type=Path, help="JSON file (default: runs/bench/NAME-TIME.json)")
    return parser


def _run(bench: Bench, name: str, as_json: bool, given: Path | None) -> int:
    """Run the bench, write the JSON file, and print the result.

    Raises:
        UserError: An option is wrong, something is missing, or the file cannot be written.
    """
    if missing := sorted(package for module, package in _PACKAGES.items() if find_spec(module) is None):
        remedy = f"./run.sh setup makes an environment with all; here: pip install --no-deps {' '.join(missing)}"
        raise UserError(f"{sys.executable} lacks {', '.join(missing)}; {remedy}")
    from configs.registry import require_engine
    from logs.disk import explain_disk_errors, write_json
    from train.bench.launching import Jobs
    from train.bench.measure import Report, surroundings
    from train.bench.samples import MeasurementFailed, MeasurementRefused

    if bench.needs:
        require_engine(bench.needs)
    now = datetime.now()
    output = given or RESULTS / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    if output.is_dir():
        raise UserError(f"--output: got {output}, which is a folder; give a file")
    with explain_disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    (load, *_), cores = os.getloadavg(), len(os.sched_getaffinity(0))
    try:
        report = bench.measure(Jobs())
    except MeasurementFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED_STATUS if isinstance(error, MeasurementRefused) else 1
    if load >= _NOTICED * cores:
        busy = f"this machine was busy: in the minute before, other work wanted {load:.1f} of {cores} cores"
        report = Report(report.rows, [*report.notes, busy])
    tree = {"bench": name, "time": now.astimezone().isoformat(), **asdict(report), **surroundings()}
    write_json(output, tree)
    sys.stdout.write((json.dumps(tree, indent=1) if as_json else f"{_text(report)}\n{output}") + "\n")
    if not report.rows:
        sys.stderr.write("error: nothing was measured\n")
    return 0 if report.rows else 1


def _text(report: "Report") -> str:
    from configs.table import table
    from train.bench.measure import CONFIDENCE

    titles = ["alternative", "figure", "median", f"{CONFIDENCE:.0%} interval", "low", "high", "n", "verdict"]
    spans = [
        "too few" if row.interval_low is None else f"{row.interval_low:,.4g} to {row.interval_high:,.4g}"
        for row in report.rows
    ]
    cells = [
        [row.alternative, row.figure, row.median, span, row.low, row.high, row.n, row.verdict]
        for row, span in zip(report.rows, spans, strict=True)
    ]
    return "\n".join([table(cells, titles), *(f"- {note}" for note in report.notes)])


if __name__ == "__main__":
    sys.exit(main())
