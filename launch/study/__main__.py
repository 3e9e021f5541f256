"""``./run.sh sweep STUDY``: run the cells of a study that are still to be run, then write its table and its plot.

Every cell is an ordinary run in a folder of its own, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import load_run, resolve_path
from configs.scaling_study import ScalingStudy
from configs.study import Cell, Study, load_study
from launch.run import launch_run
from launch.study.runner import run_scaling
from launch.submit.submission import submit_run
from logs.folder import CONFIG_FILE, SUMMARY_FILE, Summary, read_summary
from logs.study.accuracy import Results, accuracy, best_cells, write_study

__all__ = ["main"]

_DIVERGED = "loss not finite"


class _Stopped(Exception):
    """A cell could not be run to its end; the argument is the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or show a study; gives 0, 1 for a cell that failed, 2 for wrong usage, 128 + n when a signal stopped it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["sweep"] :])
        study = load_study(options.study)
        if isinstance(study, ScalingStudy):
            runs = options.runs or resolve_path(study.place().paths.runs) / study.name
            run = launch_run if study.place().scheduler.kind == "none" else submit_run
            return run_scaling(study, runs, options.output or runs, dry=options.dry_run, run=run)
        _, cluster = study.load(next(study.grid_cells()))
        runs = options.runs or resolve_path(cluster.paths.runs) / study.name
        results = _sweep(study, runs, dry=options.dry_run)
        if not options.dry_run:
            write_study(study, results, options.output or runs)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except _Stopped as stopped:
        return int(stopped.args[0])
    return 0


def _parser() -> Parser:
    parser = Parser(prog="./run.sh sweep", description=__doc__)
    parser.add_argument("study", metavar="STUDY", help="a name in configs/studies or a YAML file")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and what is known of them")
    parser.add_argument("--runs", metavar="DIR", type=Path, help="the runs' folder (default: runs/STUDY)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="for the page, CSV and SVG (default: with the runs)")
    return parser


def _sweep(study: Study, runs: Path, *, dry: bool) -> Results:
    """Run the grids at the first seed, then the other seeds at each point's best."""
    results: dict[Cell, Summary] = {}
    grid = list(study.grid_cells())
    _run_all(study, grid, runs, results, dry=dry)
    if len(results) < len(grid):
        sys.stdout.write(f"then {len(study.seeds) - 1} more seeds at the best of each point\n")
        return results
    best = best_cells(study, results).values()
    others = [replace(cell, seed=seed) for cell in best for seed in study.seeds[1:]]
    _run_all(study, others, runs, results, dry=dry)
    return results


def _run_all(study: Study, cells: Sequence[Cell], runs: Path, results: dict[Cell, Summary], *, dry: bool) -> None:
    for number, cell in enumerate(cells, start=1):
        summary = _finished(study, cell, runs / cell.folder)
        known = "to run" if summary is None else accuracy(summary)
        sys.stdout.write(f"{number:3}/{len(cells)}  {cell.folder:40}  {known}\n")
        sys.stdout.flush()
        if summary is None and not dry:
            summary = _run(study, cell, runs / cell.folder)
        if summary is not None:
            results[cell] = summary


def _finished(study: Study, cell: Cell, folder: Path) -> Summary | None:
    """Give what a cell that ran to its end, or diverged, came to.

    Raises:
        UserError: The folder holds another run.
    """
    if not (folder / CONFIG_FILE).is_file():
        return None
    if load_run(folder / CONFIG_FILE) != study.load(cell):
        raise UserError(f"{folder}: ran with other settings than the study has now; remove it, or give other --runs")
    summary = read_summary(folder) if (folder / SUMMARY_FILE).is_file() else None
    is_over = summary is not None and (summary.status == "success" or _DIVERGED in (summary.failure or ""))
    return summary if is_over else None


def _run(study: Study, cell: Cell, folder: Path) -> Summary:
    if folder.exists():
        shutil.rmtree(folder)  # what an interrupted run of this very cell left
    status = launch_run(*study.load(cell), folder)
    summary = _finished(study, cell, folder)
    if summary is None:
        raise _Stopped(status or 1)
    return summary


if __name__ == "__main__":
    sys.exit(main())
