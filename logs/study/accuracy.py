"""The results of an accuracy study: every run as CSV, the points as a page in Markdown, the curves as SVG."""

import csv
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from configs.study import Cell, Study
from logs.disk import explain_disk_errors
from logs.folder import Summary
from logs.show.plot import plot_study

Results = Mapping[Cell, Summary]
Point = tuple[str, int]
"""A curve's name and a swept value."""


def accuracy_text(summary: Summary) -> str:
    """Return the accuracy of a run as text: top-1, the mean AUC for images with several labels, or ``diverged``."""
    accuracy = _accuracy(summary)
    return "diverged" if accuracy is None else f"{accuracy:.4f}"


def _accuracy(summary: Summary) -> float | None:
    """Return top-1, the mean ROC-AUC for images with several labels, or None for a run that diverged."""
    return summary.mean_auc if summary.top1 is None else summary.top1


def _metric(results: Results) -> str:
    """Return the name of the accuracy that the runs are judged by."""
    return "top-1" if all(summary.mean_auc is None for summary in results.values()) else "AUC"


def best_cells(study: Study, results: Results) -> dict[Point, Cell]:
    """Return the best cell of each point: the most accurate at the first seed.

    If two values of the tuned key are equally accurate, the smaller one is best.
    """
    best: dict[Point, Cell] = {}
    for cell in sorted(study.grid_cells(), key=lambda each: each.tuned):
        other = best.get((cell.curve, cell.swept))
        if other is None or (_accuracy(results[cell]) or 0.0) > (_accuracy(results[other]) or 0.0):
            best[cell.curve, cell.swept] = cell
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
    points = {
        point: [_accuracy(results[each]) or 0.0 for each in results if _differs_in_seed_only(each, cell)]
        for point, cell in best.items()
    }
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_csv(folder / f"{study.name}.csv", results, best)
        page = "\n".join([*_head(study, results), *_table(study, best, points), *_grids(study, results), ""])
        (folder / f"{study.name}.md").write_text(page, encoding="utf-8")
    curves = {
        name: [(swept, *_spread(points[name, swept])) for swept in sorted(curve.grid)]
        for name, curve in study.curves.items()
    }
    plot_study(folder / f"{study.name}.svg", curves, study.swept, _metric(results))


def _differs_in_seed_only(cell: Cell, other: Cell) -> bool:
    return (cell.curve, cell.swept, cell.tuned) == (other.curve, other.swept, other.tuned)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, lowest and highest value."""
    return statistics.fmean(values), min(values), max(values)


def _write_csv(path: Path, results: Results, best: Mapping[Point, Cell]) -> None:
    metric = _metric(results).replace("-", "").lower()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["curve", "swept", "tuned", "seed", metric, "steps", "run_s", "images_per_s", "is_best"])
        for cell, summary in results.items():
            measured = (_accuracy(summary), summary.steps, summary.run_s, summary.images_per_s)
            rounded = ["" if value is None else round(value, 4) for value in measured]
            is_best = int(_differs_in_seed_only(cell, best[cell.curve, cell.swept]))
            writer.writerow([cell.curve, cell.swept, f"{cell.tuned:g}", cell.seed, *rounded, is_best])


def _head(study: Study, results: Results) -> Iterator[str]:
    settings = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in study.set.items())
    yield from (f"# {study.title}", "", study.purpose.strip(), "")
    yield f"Recipe `{study.recipe}` on `{study.cluster}` with {settings}; made by `./run.sh sweep {study.name}`."
    yield f"Each point is the mean {_metric(results)} of {len(study.seeds)} seeds (lowest to highest), at the value of"
    yield from (f"`{study.tuned}` that is best for seed {study.seeds[0]}.", "")


def _table(study: Study, best: Mapping[Point, Cell], points: Mapping[Point, list[float]]) -> Iterator[str]:
    names = list(study.curves)
    yield f"| {study.swept} | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for swept in sorted({swept for _, swept in best}):
        row = []
        for name in names:
            cell = best.get((name, swept))
            mean, low, high = _spread(points[name, swept]) if cell else (0.0, 0.0, 0.0)
            row.append(f"{mean:.4f} ({low:.4f} to {high:.4f}) at {cell.tuned:g}" if cell else "")
        yield f"| {swept:,} | " + " | ".join(row) + " |"
    yield ""


def _grids(study: Study, results: Results) -> Iterator[str]:
    """Return the plot, the accuracy of every grid value, and the study's notes."""
    seed = study.seeds[0]
    yield from (f"![{study.title}]({study.name}.svg)", "")
    yield from (f"The {_metric(results)} of all values that were tried, at seed {seed}:", "")
    for name, curve in study.curves.items():
        for swept, values in sorted(curve.grid.items()):
            cells = [Cell(name, swept, value, seed) for value in values]
            tried = ", ".join(f"{accuracy_text(results[cell])} at {cell.tuned:g}" for cell in cells)
            yield f"- {name}, {swept:,}: {tried}"
    if study.notes:
        yield from ("", study.notes.strip())
