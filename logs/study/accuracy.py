"""What a study found: every run as CSV, the points as a page in Markdown, the curves as SVG."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.study import Cell, Study
from logs.disk import explain_disk_errors
from logs.folder import Summary
from logs.show.plot import plot_study

__all__ = ["Results", "accuracy", "best_cells", "write_study"]

Results = Mapping[Cell, Summary]


def accuracy(summary: Summary) -> str:
    """Write a run's top-1, or what it is judged by instead."""
    found = _quality(summary)
    return "diverged" if found is None else f"{found:.4f}"


def _quality(summary: Summary) -> float | None:
    """Give top-1, mean ROC-AUC where images have several labels, or none of a run that diverged."""
    return summary.mean_auc if summary.top1 is None else summary.top1


def _metric(results: Results) -> str:
    """Name what runs are judged by."""
    return "top-1" if all(summary.mean_auc is None for summary in results.values()) else "AUC"


def best_cells(study: Study, results: Results) -> dict[tuple[str, int], Cell]:
    """Choose each point's value of the tuned key: the most accurate at the first seed, of equal ones the smallest."""
    best: dict[tuple[str, int], Cell] = {}
    for cell in sorted(study.grid_cells(), key=lambda each: each.tuned):
        other = best.get((cell.curve, cell.swept))
        if other is None or (_quality(results[cell]) or 0.0) > (_quality(results[other]) or 0.0):
            best[cell.curve, cell.swept] = cell
    return best


def write_study(study: Study, results: Results, folder: Path) -> None:
    """Write NAME.csv, NAME.md and NAME.svg into ``folder``.

    Raises:
        UserError: The folder cannot be written.
    """
    best = best_cells(study, results)
    points = {
        (curve, swept): [_quality(results[each]) or 0.0 for each in results if _is_at(each, cell)]
        for (curve, swept), cell in best.items()
    }
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_csv(folder / f"{study.name}.csv", results, best)
        page = _page(study, results, best, points)
        (folder / f"{study.name}.md").write_text(page, encoding="utf-8")
    curves = {
        name: [(swept, *_spread(points[name, swept])) for swept in sorted(curve.grid)]
        for name, curve in study.curves.items()
    }
    plot_study(folder / f"{study.name}.svg", curves, study.swept, _metric(results))


def _is_at(cell: Cell, chosen: Cell) -> bool:
    return (cell.curve, cell.swept, cell.tuned) == (chosen.curve, chosen.swept, chosen.tuned)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Give mean, lowest and highest."""
    return statistics.fmean(values), min(values), max(values)


def _write_csv(path: Path, results: Results, best: Mapping[tuple[str, int], Cell]) -> None:
    metric = _metric(results).replace("-", "").lower()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["curve", "swept", "tuned", "seed", metric, "steps", "run_s", "images_per_s", "is_best"])
        for cell, summary in results.items():
            measured = (_quality(summary), summary.steps, summary.run_s, summary.images_per_s)
            rounded = ["" if value is None else round(value, 4) for value in measured]
            is_best = int(_is_at(cell, best[cell.curve, cell.swept]))
            writer.writerow([cell.curve, cell.swept, f"{cell.tuned:g}", cell.seed, *rounded, is_best])


def _page(
    study: Study, results: Results, best: Mapping[tuple[str, int], Cell], points: Mapping[tuple[str, int], list[float]]
) -> str:
    names, seed = list(study.curves), study.seeds[0]
    metric = _metric(results)
    settings = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in study.set.items())
    lines = [
        f"# {study.title}", "", study.purpose.strip(), "",
        f"Recipe `{study.recipe}` on `{study.cluster}` with {settings}; made by `./run.sh sweep {study.name}`.",
        f"Each point: the mean {metric} of {len(study.seeds)} seeds (lowest to highest), at the `{study.tuned}` that",
        f"was best for seed {seed}.", "",
        f"| {study.swept} | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names),
    ]  # fmt: skip
    for swept in sorted({swept for _, swept in best}):
        row = []
        for name in names:
            cell = best.get((name, swept))
            mean, low, high = _spread(points[name, swept]) if cell else (0.0, 0.0, 0.0)
            row.append(f"{mean:.4f} ({low:.4f} to {high:.4f}) at {cell.tuned:g}" if cell else "")
        lines.append(f"| {swept:,} | " + " | ".join(row) + " |")
    lines += ["", f"![{study.title}]({study.name}.svg)", "", f"The grids, {metric} at seed {seed}:", ""]
    for name, curve in study.curves.items():
        for swept, values in sorted(curve.grid.items()):
            cells = [Cell(name, swept, value, seed) for value in values]
            tried = ", ".join(f"{accuracy(results[cell])} at {cell.tuned:g}" for cell in cells)
            lines.append(f"- {name}, {swept:,}: {tried}")
    if study.notes:
        lines += ["", study.notes.strip()]
    return "\n".join([*lines, ""])
