"""An accuracy study: the grids at the first seed, then the other seeds at the best value of each point.

Every run is a row of a CSV, the points are a page in Markdown, and the curves are an SVG.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from configs.arguments import counted
from configs.registry import require_engine
from configs.study import Cell, Study
from configs.table import csv_text
from launch.study.tasks import RunStarter, Task, run_study
from logs.disk import write_text
from logs.folder import Summary
from logs.show.drawing import plot_study
from logs.show.page import render_template

DIVERGED = "not finite at step"
"""Words in the failure of a run that diverged, which is a result too: the learning rate is too high."""

Results = Mapping[Cell, Summary]
_Ended = tuple[Cell, Summary]
Point = tuple[str, int]
"""A curve's name and a swept value."""


def run_accuracy(study: Study, runs: Path, output: Path, *, is_dry_run: bool, starter: RunStarter) -> int:
    """Run an accuracy study, or list its runs.

    Args:
        study: The curves with their grids.
        runs: Folder of the runs' folders.
        output: Folder of the table, the page and the plot.
        is_dry_run: Whether to list the runs only.
        starter: What runs a cell.

    Returns:
        The exit status; a run that fails without diverging ends the study with the status of the run.

    Raises:
        ConfigError: A run needs a framework that this environment lacks.
        UserError: A folder holds a run with other settings, or a run was refused.
    """
    grid, results = list(study.cells()), dict[Cell, Summary]()
    if not is_dry_run:
        for name in {study.load(cell)[1].engine.name for cell in grid}:
            require_engine(name)

    def task(cell: Cell) -> Task[_Ended]:
        def find(ended: Summary) -> _Ended | None:
            return (cell, ended) if ended.is_concluded or DIVERGED in (ended.failure or "") else None

        return Task(
            *study.load(cell), runs / cell.name, starter, find, lambda result: accuracy_text(result[1]), resumes=True
        )

    def stages() -> Iterator[Sequence[Task[_Ended]]]:
        yield list(map(task, grid))
        if len(results) < len(grid):  # Only a dry run gets here without all results.
            sys.stdout.write(f"then {counted(len(study.seeds) - 1, 'more seed')} at the best of each point\n")
        else:
            best = best_cells(study, results).values()
            yield [task(replace(cell, seed=seed)) for cell in best for seed in study.seeds[1:]]

    return run_study(
        stages(), lambda ended: results.update([ended]), lambda: write_study(study, results, output),
        is_dry_run=is_dry_run,
    )  # fmt: skip


def accuracy_text(summary: Summary) -> str:
    """Return the accuracy of a run as text: top-1, the mean AUC for images with several labels, or ``diverged``."""
    accuracy = _accuracy(summary)
    return "diverged" if accuracy is None else f"{accuracy:.4f}"


def _accuracy(summary: Summary) -> float | None:
    """Return top-1, the mean ROC-AUC for images with several labels, or None for a run that diverged."""
    return summary.mean_auc if summary.top1 is None else summary.top1


def best_cells(study: Study, results: Results) -> dict[Point, Cell]:
    """Return the best cell of each point: the most accurate at the first seed.

    If two values of the tuned key are equally accurate, the smaller one is best.
    """
    best: dict[Point, Cell] = {}
    for cell in sorted(study.cells(), key=lambda each: (-(_accuracy(results[each]) or 0.0), each.tuned)):
        best.setdefault((cell.curve, cell.swept), cell)
    return best


def write_study(study: Study, results: Results, folder: Path) -> None:
    """Write NAME.csv, NAME.md and NAME.svg into ``folder``.

    Args:
        study: The study.
        results: The summary of every run: the grids at the first seed, and every seed at each point's best cell.
        folder: Made if it is missing.

    Raises:
        UserError: The folder cannot be written.
    """
    best = best_cells(study, results)
    metric = "top-1" if all(summary.mean_auc is None for summary in results.values()) else "AUC"
    points, told = {}, {}  # mean, lowest and highest accuracy of the seeds that did not diverge, and the same in words
    for point, cell in best.items():
        values = [_accuracy(summary) for each, summary in results.items() if _differs_in_seed_only(each, cell)]
        words = "diverged"
        if ended := [value for value in values if value is not None]:
            points[point] = mean, low, high = fmean(ended), min(ended), max(ended)
            words = f"{mean:.4f} ({low:.4f} to {high:.4f})"
        lost = f"; {len(values) - len(ended)} of {len(values)} seeds diverged" if 0 < len(ended) < len(values) else ""
        told[point] = f"{words} at {cell.tuned:g}{lost}"
    page = render_template(
        Path(__file__).with_suffix(".md"),
        study=study,
        settings=", ".join(f"`{key}={json.dumps(value)}`" for key, value in study.set.items()),
        metric=metric,
        swept_values=sorted({swept for _, swept in best}),
        points=told,
        tried={(each.curve, each.swept, each.tuned): accuracy_text(results[each]) for each in study.cells()},
    )
    write_text(folder / f"{study.name}.csv", _table(metric, results, best), makes_folder=True)
    write_text(folder / f"{study.name}.md", f"{page.rstrip()}\n")
    curves = {
        name: [(swept, *points[name, swept]) for swept in sorted(curve.grid) if (name, swept) in points]
        for name, curve in study.curves.items()
    }
    plot_study(folder / f"{study.name}.svg", curves, study.swept, metric)


def _differs_in_seed_only(cell: Cell, other: Cell) -> bool:
    return replace(cell, seed=other.seed) == other


def _table(metric: str, results: Results, best: Mapping[Point, Cell]) -> str:
    column, rows = metric.replace("-", "").lower(), []
    for cell, summary in results.items():
        run_s = None if summary.resumed_from_step else summary.run_s  # of the last part only
        measured = (_accuracy(summary), summary.steps, run_s, summary.images_per_s)
        rounded = [value and round(value, 4) for value in measured]
        is_best = int(_differs_in_seed_only(cell, best[cell.curve, cell.swept]))
        rows.append([cell.curve, cell.swept, f"{cell.tuned:g}", cell.seed, *rounded, is_best])
    return csv_text(rows, ["curve", "swept", "tuned", "seed", column, "steps", "run_s", "images_per_s", "is_best"])
