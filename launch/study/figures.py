"""The figures of a scaling study's page, from its rows. Predicted values have lines of their own, in another style."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from configs.arguments import counted
from launch.study.rows import ScalingRow, best_rate, grouped, places
from logs.show.chart import Captioned, LineChart, Scale, Series
from logs.show.figures import course, utilisation
from logs.show.reported_run import gather_run
from logs.usage import read_samples

_Section = tuple[str, list[Captioned]]
"""The title of a section of the page, and its figures."""

_WIDE_RANGE = 16
"""Ratio of the most to the fewest ranks from which on an axis is logarithmic: on a linear axis, the values at few ranks
would lie on top of each other."""

_IDEAL_COLOUR = 5


def cell_figures(rows: Sequence[ScalingRow], global_batches: Sequence[int] = ()) -> Iterator[_Section]:
    """Yield the sections with figures that compare cells.

    Args:
        rows: All rows, with their efficiency.
        global_batches: Batches of all ranks together, for the figures of strong scaling.
    """
    known = [row for row in rows if row.images_per_s]
    if len({row.ranks for row in known}) > 1:
        yield "Throughput", list(_throughput(known))
        yield "Efficiency", list(_efficiency([row for row in known if row.efficiency]))
    yield "Strong scaling", list(_strong_scaling(known, global_batches))


def _line_chart(
    title: str,
    label: str,
    rows: Sequence[ScalingRow],
    ideal: Sequence[tuple[float, float]] = (),
    *,
    y: str = "images_per_s",
) -> LineChart:
    """Return a chart of medians over the ranks, with a line for each label and basis.

    Args:
        title: Name of the vertical axis.
        label: Column that names the lines.
        rows: All points.
        ideal: Points of a line to compare with.
        y: Column of the vertical axis.
    """
    names = list(dict.fromkeys(getattr(row, label) for row in rows))
    series = []
    for (name, basis), line in grouped(rows, label, "basis").items():
        told = f"{name}, predicted" if basis == "predicted" else name
        cells = sorted(grouped(line, "ranks").items())
        points = [(float(ranks), median(getattr(row, y) for row in found)) for (ranks,), found in cells]
        series.append(Series(told, names.index(name), points, basis))
    series += [Series("ideal", _IDEAL_COLOUR, ideal, "ideal")] if ideal else []
    found = [ranks for each in series for ranks, _ in each.points]
    scale: Scale = "log2" if max(found) >= _WIDE_RANGE * min(found) else "linear"
    return LineChart(title, "ranks", series, x_scale=scale, y_scale="linear" if title == "Efficiency" else scale)


def _throughput(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    for words, group in places(rows, "framework", "network", "data", "batch"):
        if len({row.ranks for row in group}) > 1:  # One number of ranks has a cell of strong scaling only.
            chart = _line_chart("Images/s", "communication", group, _ideal_rate(group))
            yield Captioned(f"Images/s: {words}", chart)


def _ideal_rate(rows: Sequence[ScalingRow]) -> list[tuple[float, float]]:
    """Return the ends of the line on which the measured rate at the fewest ranks grows in proportion to the ranks."""
    for row in rows:
        if row.basis == "measured" and row.efficiency:
            rate_of_one_rank = (row.images_per_s or 0.0) / row.ranks / row.efficiency
            most = max(row.ranks for row in rows)
            return [(count, count * rate_of_one_rank) for count in (1.0, float(most))]
    return []


def _efficiency(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    for words, group in places(rows, "framework", "communication", "data", "batch"):
        ideal = [(1.0, 1.0), (float(max(row.ranks for row in group)), 1.0)]
        yield Captioned(f"Efficiency: {words}", _line_chart("Efficiency", "network", group, ideal, y="efficiency"))


def _over(base: float, rows: Iterable[ScalingRow]) -> list[ScalingRow]:
    """Return the rows with rates relative to a rate; none if that is 0."""
    return [replace(row, images_per_s=(row.images_per_s or 0.0) / base) for row in rows] if base else []


def _strong_scaling(rows: Sequence[ScalingRow], sizes: Sequence[int]) -> Iterator[Captioned]:
    """Yield charts of the rate over that at the fewest ranks, in cells that split one global batch.

    The rate at the fewest ranks is the best median over all kinds of communication. Left out are cells without a
    second number of ranks, and predictions without a predicted rate at the fewest ranks.
    """
    for size in sizes:
        same = [row for row in rows if row.batch * row.ranks == size]
        for words, group in places(same, "framework", "network", "data"):
            fewest = min(row.ranks for row in group)
            shown = [row for own in grouped(group, "basis").values() for row in _over(best_rate(own, fewest), own)]
            most = max(row.ranks for row in shown)
            if most > fewest:
                ideal = [(float(fewest), 1.0), (float(most), most / fewest)]
                chart = _line_chart("Speed-up", "communication", shown, ideal)
                yield Captioned(f"Images/s relative to the fewest ranks: {words}, batch {size} in all", chart)


def course_figures(rows: Sequence[ScalingRow], runs: Path) -> Iterator[_Section]:
    """Yield the sections with figures that follow the first repeat of each cell through its run.

    Args:
        rows: All rows.
        runs: Folder of the runs' folders.
    """
    first = [row for row in rows if row.basis == "measured" and row.status == "success" and not row.repeat]
    courses: list[Captioned] = []
    traces: list[Captioned] = []
    for words, group in places(first, "framework", "network", "data", "batch"):
        folders = {f"{row.communication}, {counted(row.ranks, 'rank')}": runs / row.folder for row in group}
        of_runs = course([gather_run(folder, name) for name, folder in folders.items()])
        of_samples = utilisation({name: read_samples(folder) for name, folder in folders.items()})
        courses += [replace(figure, caption=f"{figure.caption}: {words}") for figure in of_runs]
        traces += [replace(figure, caption=f"{figure.caption}: {words}") for figure in of_samples]
    yield "Loss and accuracy", courses
    yield "Utilisation", traces
