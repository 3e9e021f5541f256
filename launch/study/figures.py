"""The figures of a scaling study's page, from its rows. Predicted values have lines of their own, in another style."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from configs.arguments import counted
from launch.study.comparisons import in_words
from launch.study.rows import ScalingRow, best_rate, grouped, median_rate
from logs.show.chart import Bar, BarChart, Captioned, LineChart, Scale, Series, Stretch, Style
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
    known = [row for row in rows if row.images_per_s is not None]
    if len({row.ranks for row in known}) > 1:
        yield "Throughput", list(_throughput(known))
        yield "Efficiency", list(_efficiency(known))
    yield "Strong scaling", list(_strong_scaling(known, global_batches))
    if len({row.batch for row in known}) > 1:
        yield "Speed-up by batch", list(_speed_up_by_batch(known))
    yield "Frameworks", list(_kinds(known, "framework", "framework"))
    yield "Kinds of data", list(_kinds(known, "data", "kind of data"))


def _line_chart(
    title: str,
    label: str,
    values: Iterable[tuple[ScalingRow, float | None]],
    ideal: Sequence[tuple[float, float]] = (),
    *,
    x: str = "ranks",
) -> LineChart:
    """Return a chart of medians, with a line for each label and basis.

    Args:
        title: Name of the vertical axis.
        label: Column that names the lines.
        values: Rows, each with what the vertical axis shows of it; a row without a value has no point.
        ideal: Points of a line to compare with.
        x: Column of the horizontal axis, ``ranks`` or ``batch``.
    """
    names: dict[str, int] = {}
    lines: dict[tuple[str, Style], dict[int, list[float]]] = {}
    for row, value in values:
        name = getattr(row, label)
        names.setdefault(name, len(names))
        if value is not None:
            lines.setdefault((name, row.basis), {}).setdefault(getattr(row, x), []).append(value)
    series = [
        Series(
            f"{name}, predicted" if basis == "predicted" else name,
            names[name],
            [(float(place), median(found)) for place, found in sorted(points.items())],
            basis,
        )
        for (name, basis), points in lines.items()
    ]
    series += [Series("ideal", _IDEAL_COLOUR, ideal, "ideal")] if ideal else []
    places = [place for each in series for place, _ in each.points]
    is_wide = x == "ranks" and max(places) >= _WIDE_RANGE * min(places)
    scale: Scale = "log2" if is_wide else "linear"
    y_scale: Scale = "linear" if title == "Efficiency" else scale
    x_name = "images per rank" if x == "batch" else x
    return LineChart(title, x_name, series, x_scale=scale, y_scale=y_scale)


def _throughput(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    for (*place, batch), group in grouped(rows, "framework", "network", "data", "batch").items():
        if len({row.ranks for row in group}) == 1:  # A cell of strong scaling only.
            continue
        values = [(row, row.images_per_s) for row in group]
        chart = _line_chart("Images/s", "communication", values, _ideal_rate(group))
        yield Captioned(f"Images/s: {in_words(place)}, batch {batch} a rank", chart)


def _ideal_rate(rows: Sequence[ScalingRow]) -> list[tuple[float, float]]:
    """Return the ends of the line on which the measured rate at the fewest ranks grows in proportion to the ranks."""
    for row in rows:
        if row.basis == "measured" and row.efficiency:
            rate_of_one_rank = (row.images_per_s or 0.0) / row.ranks / row.efficiency
            most = max(row.ranks for row in rows)
            return [(count, count * rate_of_one_rank) for count in (1.0, float(most))]
    return []


def _efficiency(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    judged = [row for row in rows if row.efficiency is not None]
    for (*place, batch), group in grouped(judged, "framework", "communication", "data", "batch").items():
        most = float(max(row.ranks for row in group))
        values = [(row, row.efficiency) for row in group]
        chart = _line_chart("Efficiency", "network", values, [(1.0, 1.0), (most, 1.0)])
        yield Captioned(f"Efficiency: {in_words(place)}, batch {batch} a rank", chart)


def _strong_scaling(rows: Sequence[ScalingRow], sizes: Sequence[int]) -> Iterator[Captioned]:
    """Yield charts of the rate over that at the fewest ranks, in cells that split one global batch.

    The rate at the fewest ranks is the best median over all kinds of communication. Left out are cells without a
    second number of ranks, and predictions without a predicted rate at the fewest ranks.
    """
    for size in sizes:
        same = [row for row in rows if row.batch * row.ranks == size]
        for place, group in grouped(same, "framework", "network", "data").items():
            fewest = min(row.ranks for row in group)
            at_fewest = grouped([row for row in group if row.ranks == fewest], "basis")
            bases = {basis: best_rate(own) for (basis,), own in at_fewest.items()}
            values = [(row, (row.images_per_s or 0.0) / bases[row.basis]) for row in group if row.basis in bases]
            most = max(row.ranks for row, _ in values)
            if most > fewest:
                ideal = [(float(fewest), 1.0), (float(most), most / fewest)]
                chart = _line_chart("Speed-up", "communication", values, ideal)
                words = f"Images/s relative to the fewest ranks: {in_words(place)}, batch {size} in all"
                yield Captioned(words, chart)


def _speed_up_by_batch(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    """Yield charts of the rate over the median rate at the smallest batch of the same network and basis."""
    for (*place, ranks), group in grouped(rows, "framework", "communication", "data", "ranks").items():
        if len({row.batch for row in group}) == 1:
            continue
        bases = {}
        for key, own in grouped(group, "network", "basis").items():
            bases[key] = median_rate(min(grouped(own, "batch").items())[1])
        values = [(row, (row.images_per_s or 0.0) / bases[row.network, row.basis]) for row in group]
        words = f"Images/s relative to the smallest batch: {in_words(place)}, {counted(ranks, 'rank')}"
        yield Captioned(words, _line_chart("Speed-up", "network", values, x="batch"))


def _kinds(rows: Sequence[ScalingRow], axis: str, title: str) -> Iterator[Captioned]:
    """Yield charts with a bar for each value of an axis in each cell that has several."""
    measured = [row for row in rows if row.basis == "measured"]
    kinds = list(dict.fromkeys(str(getattr(row, axis)) for row in measured))
    others = [name for name in ("framework", "network", "communication", "data") if name != axis]
    for place, group in grouped(measured, *others).items():
        if len(grouped(group, axis)) == 1:
            continue
        bars = [
            _bar(f"b{batch} x{ranks} {kind}", median_rate(repeats), kinds.index(kind))
            for (batch, ranks), cell in grouped(group, "batch", "ranks").items()
            for (kind,), repeats in grouped(cell, axis).items()
        ]
        yield Captioned(f"Images/s by {title}: {in_words(place)}", BarChart("Images/s", "images/s", bars, kinds))


def _bar(label: str, rate: float, colour: int) -> Bar:
    return Bar(label, [Stretch(0.0, rate, colour, f"{label}: {rate:,.1f} images/s")])


def course_figures(rows: Sequence[ScalingRow], runs: Path) -> Iterator[_Section]:
    """Yield the sections with figures that follow the first repeat of each cell through its run.

    Args:
        rows: All rows.
        runs: Folder of the runs' folders.
    """
    first = [row for row in rows if row.basis == "measured" and row.status == "success" and not row.repeat]
    courses: list[Captioned] = []
    traces: list[Captioned] = []
    for (*place, batch), group in grouped(first, "framework", "network", "data", "batch").items():
        folders = {f"{row.communication}, {counted(row.ranks, 'rank')}": runs / row.folder for row in group}
        cells = f"{in_words(place)}, batch {batch} a rank"
        of_runs = course([gather_run(folder, name) for name, folder in folders.items()])
        of_samples = utilisation({name: read_samples(folder) for name, folder in folders.items()})
        courses += [replace(figure, caption=f"{figure.caption}: {cells}") for figure in of_runs]
        traces += [replace(figure, caption=f"{figure.caption}: {cells}") for figure in of_samples]
    yield "Loss and accuracy", courses
    yield "Utilisation", traces
