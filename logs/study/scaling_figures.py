"""The figures of a scaling study's page, from its rows. Predicted values have lines of their own, in another style."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from logs.show.chart import Bar, BarChart, Captioned, LineChart, Scale, Series, Stretch
from logs.show.figures import course, utilisation
from logs.show.reported_run import gather_run
from logs.study.cells import ScalingRow
from logs.usage import read_samples

_Section = tuple[str, list[Captioned]]
"""The title of a section of the page, and its figures."""

_AXIS_NAMES = {"ranks": "ranks", "batch": "images a rank"}
_WIDE_RANGE = 16
"""Ratio of the most to the fewest ranks from which on an axis is logarithmic."""

_WIDE_SCALES: dict[str, tuple[Scale, Scale]] = {
    "Images/s": ("log2", "log2"),
    "Efficiency": ("log2", "linear"),
    "Speed-up": ("log2", "log2"),
}
_IDEAL_COLOUR = 5


def grouped(rows: Sequence[ScalingRow], *names: str) -> dict[tuple[Any, ...], list[ScalingRow]]:
    """Return groups of rows that agree in the named columns, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[ScalingRow]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def in_words(values: Iterable[str]) -> str:
    """Return names as a list; a study that compares no frameworks has an empty one for them."""
    return ", ".join(filter(None, values))


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
    yield "Epoch time", list(_epoch_time(known))
    if len({row.batch for row in known}) > 1:
        yield "Speed-up by batch", list(_speed_up_by_batch(known))
    yield "Frameworks", list(_kinds(known, "framework", "framework"))
    yield "Kinds of data", list(_kinds(known, "data", "kind of data"))


def _line_chart(
    title: str,
    rows: Sequence[ScalingRow],
    *,
    x: str,
    label: str,
    value: Callable[[ScalingRow], float | None],
    ideal: Sequence[Series] = (),
) -> LineChart:
    """Return a chart of medians, with a line for each label and basis.

    Args:
        title: Name of the vertical axis.
        rows: The rows with the values.
        x: Column of the horizontal axis, ``ranks`` or ``batch``.
        label: Column that names the lines.
        value: What the vertical axis shows of a row.
        ideal: Lines to compare with.
    """
    names = list(dict.fromkeys(str(getattr(row, label)) for row in rows))
    series = []
    for (name, basis), group in grouped(rows, label, "basis").items():
        points = []
        for (place,), cell in sorted(grouped(group, x).items()):
            values = [found for found in map(value, cell) if found is not None]
            if values:
                points.append((float(place), median(values)))
        if points:
            legend = f"{name}, predicted" if basis == "predicted" else str(name)
            series.append(Series(legend, names.index(str(name)), points, basis))
    series += ideal
    places = [place for each in series for place, _ in each.points]
    # On a linear axis up to many ranks, the values at few ranks would lie on top of each other.
    is_wide = x == "ranks" and max(places) >= _WIDE_RANGE * min(places)
    x_scale, y_scale = _WIDE_SCALES[title] if is_wide else ("linear", "linear")
    return LineChart(title, _AXIS_NAMES[x], series, x_scale=x_scale, y_scale=y_scale)


def _throughput(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    for (*place, batch), group in grouped(rows, "framework", "network", "data", "batch").items():
        if len({row.ranks for row in group}) == 1:  # A cell of strong scaling only.
            continue
        chart = _line_chart(
            "Images/s",
            group,
            x="ranks",
            label="communication",
            value=lambda row: row.images_per_s,
            ideal=_ideal_rate(group),
        )
        yield Captioned(f"Images/s: {in_words(place)}, batch {batch} a rank", chart)


def _ideal_rate(rows: Sequence[ScalingRow]) -> list[Series]:
    """Return the line on which the measured rate at the fewest ranks grows in proportion to the ranks."""
    measured = [row for row in rows if row.basis == "measured" and row.efficiency]
    if not measured:
        return []
    row = measured[0]
    rate_of_one_rank = (row.images_per_s or 0.0) / row.ranks / (row.efficiency or 1.0)
    most = max(row.ranks for row in rows)
    points = [(count, count * rate_of_one_rank) for count in (1.0, float(most))]
    return [Series("ideal", _IDEAL_COLOUR, points, "ideal")]


def _efficiency(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    judged = [row for row in rows if row.efficiency is not None]
    for (*place, batch), group in grouped(judged, "framework", "communication", "data", "batch").items():
        most = float(max(row.ranks for row in group))
        ideal = Series("ideal", _IDEAL_COLOUR, [(1.0, 1.0), (most, 1.0)], "ideal")
        chart = _line_chart(
            "Efficiency", group, x="ranks", label="network", value=lambda row: row.efficiency, ideal=[ideal]
        )
        yield Captioned(f"Efficiency: {in_words(place)}, batch {batch} a rank", chart)


def _strong_scaling(rows: Sequence[ScalingRow], sizes: Sequence[int]) -> Iterator[Captioned]:
    for size in sizes:
        for place, group in strong_speed_ups(rows, size).items():
            most, fewest = (float(pick(row.ranks for row, _ in group)) for pick in (max, min))
            ideal = Series("ideal", _IDEAL_COLOUR, [(fewest, 1.0), (most, most / fewest)], "ideal")
            speed_ups = {id(row): speed_up for row, speed_up in group}
            chart = _line_chart(
                "Speed-up",
                [row for row, _ in group],
                x="ranks",
                label="communication",
                value=lambda row, of=speed_ups: of[id(row)],  # type: ignore[misc]
                ideal=[ideal],
            )
            yield Captioned(f"Images/s relative to the fewest ranks: {in_words(place)}, batch {size} in all", chart)


def strong_speed_ups(rows: Sequence[ScalingRow], size: int) -> dict[tuple[str, ...], list[tuple[ScalingRow, float]]]:
    """Return the rows of one global batch, each with its rate over that at the fewest ranks.

    The rows are grouped by framework, network and data.

    The rate at the fewest ranks is the best median over all kinds of communication. Left out are groups without a
    second number of ranks, and predictions without a predicted rate at the fewest ranks.
    """
    found: dict[tuple[str, ...], list[tuple[ScalingRow, float]]] = {}
    same = [row for row in rows if row.batch * row.ranks == size]
    for place, group in grouped(same, "framework", "network", "data").items():
        fewest = min(row.ranks for row in group)
        at_fewest = [row for row in group if row.ranks == fewest]
        bases = {
            basis: max(median(row.images_per_s or 0.0 for row in ways) for ways in _by_way(own))
            for (basis,), own in grouped(at_fewest, "basis").items()
        }
        pairs = [(row, (row.images_per_s or 0.0) / bases[row.basis]) for row in group if row.basis in bases]
        if len({row.ranks for row, _ in pairs}) > 1:
            found[place] = pairs
    return found


def _by_way(rows: Sequence[ScalingRow]) -> Iterable[list[ScalingRow]]:
    return grouped(rows, "communication").values()


def _epoch_time(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    """Yield a chart with a bar for the first epoch and a bar for the later epochs of each cell."""
    timed = [row for row in rows if row.first_epoch_s]
    for place, group in grouped(timed, "framework", "network", "data").items():
        bars = []
        for (communication, batch, ranks), cell in grouped(group, "communication", "batch", "ranks").items():
            times = {"first": [row.first_epoch_s for row in cell], "later": [row.later_epoch_s for row in cell]}
            for number, (epoch, values) in enumerate(times.items()):
                known = [value for value in values if value is not None]
                if known:
                    label = f"{communication} b{batch} x{ranks} {epoch}"
                    bars.append(Bar(label, [Stretch(0.0, median(known), number, f"{label}: {median(known):.2f} s")]))
        chart = BarChart("Seconds an epoch, first and later", "s", bars, ("first epoch", "later epochs"))
        yield Captioned(f"Seconds an epoch: {in_words(place)}", chart)


def _speed_up_by_batch(rows: Sequence[ScalingRow]) -> Iterator[Captioned]:
    for (*place, ranks), group in grouped(rows, "framework", "communication", "data", "ranks").items():
        if len({row.batch for row in group}) == 1:
            continue
        chart = _line_chart("Speed-up", group, x="batch", label="network", value=_over_smallest_batch(group))
        cells = f"{in_words(place)}, {ranks_in_words(ranks)}"
        yield Captioned(f"Images/s relative to the smallest batch: {cells}", chart)


def _over_smallest_batch(rows: Sequence[ScalingRow]) -> Callable[[ScalingRow], float]:
    """Return a function from a row to its rate over the median rate at the smallest batch of its network and basis."""
    bases = {}
    for key, group in grouped(rows, "network", "basis").items():
        smallest = min(row.batch for row in group)
        bases[key] = median(row.images_per_s or 0.0 for row in group if row.batch == smallest)
    return lambda row: (row.images_per_s or 0.0) / bases[row.network, row.basis]


def _kinds(rows: Sequence[ScalingRow], axis: str, title: str) -> Iterator[Captioned]:
    """Yield charts with a bar for each value of an axis in each cell that has several."""
    measured = [row for row in rows if row.basis == "measured"]
    kinds = list(dict.fromkeys(str(getattr(row, axis)) for row in measured))
    others = [name for name in ("framework", "network", "communication", "data") if name != axis]
    for place, group in grouped(measured, *others).items():
        if len(grouped(group, axis)) == 1:
            continue
        bars = []
        for (batch, ranks), cell in grouped(group, "batch", "ranks").items():
            for (kind,), repeats in grouped(cell, axis).items():
                rate = median(row.images_per_s or 0.0 for row in repeats)
                label = f"b{batch} x{ranks} {kind}"
                bars.append(Bar(label, [Stretch(0.0, rate, kinds.index(kind), f"{label}: {rate:,.1f} images/s")]))
        chart = BarChart("Images/s", "images/s", bars, kinds)
        yield Captioned(f"Images/s by {title}: {in_words(place)}", chart)


def ranks_in_words(count: int) -> str:
    """Return ``1 rank``, ``2 ranks`` and so on."""
    return "1 rank" if count == 1 else f"{count} ranks"


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
        names = [f"{row.communication}, {ranks_in_words(row.ranks)}" for row in group]
        cells = f"{in_words(place)}, batch {batch} a rank"
        subjects = [gather_run(runs / row.folder, name) for row, name in zip(group, names, strict=True)]
        courses += [replace(figure, caption=f"{figure.caption}: {cells}") for figure in course(subjects)]
        samples = {name: read_samples(runs / row.folder) for row, name in zip(group, names, strict=True)}
        traces += [replace(figure, caption=f"{figure.caption}: {cells}") for figure in utilisation(samples)]
    yield "Loss and accuracy", courses
    yield "Utilisation", traces
