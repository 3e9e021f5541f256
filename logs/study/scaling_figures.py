"""What a scaling study's page draws: rows to charts. What was predicted is a line of its own, in a style of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from logs.show.chart import Bar, BarChart, Captioned, LineChart, Scale, Series, Stretch
from logs.show.figures import course
from logs.show.subject import gather
from logs.study.cells import Row
from logs.usage import Sample, read_samples

__all__ = ["cell_figures", "course_figures", "grouped", "ranks_in_words"]

_Titled = tuple[str, list[Captioned]]


def grouped(rows: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Sort rows into groups that agree in the columns named; groups keep the order of the grid."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def cell_figures(rows: Sequence[Row]) -> Iterator[_Titled]:
    """Give the sections whose charts compare cells."""
    known = [row for row in rows if row.images_per_s is not None]
    many_ranks, many_batches = (len({getattr(row, name) for row in known}) > 1 for name in ("ranks", "batch"))
    if many_ranks:
        yield "Throughput", list(_throughput(known))
        yield "Efficiency", list(_efficiency(known))
    yield "Epoch time", list(_epoch_time(known))
    if many_batches:
        yield "Speed-up by batch", list(_speed_up_by_batch(known))
    if len({row.data for row in known}) > 1:
        yield "Kinds of data", list(_data_kinds(known))


def _lines(
    title: str, x: str, rows: Sequence[Row], label: str, value: Callable[[Row], float | None],
    extra: Sequence[Series] = (),
) -> LineChart:  # fmt: skip
    """Draw medians of ``value`` over the column ``x``, a line for each ``label`` and basis."""
    names = list(dict.fromkeys(str(getattr(row, label)) for row in rows))
    series = []
    for (name, basis), group in grouped(rows, label, "basis").items():
        points = []
        for (place,), cell in sorted(grouped(group, x).items()):
            values = [found for found in map(value, cell) if found is not None]
            if values:
                points.append((float(place), median(values)))
        if points:
            told = f"{name}, predicted" if basis == "predicted" else str(name)
            series.append(Series(told, names.index(str(name)), points, basis))
    series += extra
    places = [place for each in series for place, _ in each.points]
    # Where ranks go far, what few of them do would be lost in the corner.
    goes_far = x == "ranks" and max(places) >= _FAR * min(places)
    x_scale, y_scale = _SCALES[title] if goes_far else ("linear", "linear")
    return LineChart(title, _AXES[x], series, x_scale=x_scale, y_scale=y_scale)


_FAR = 16
_SCALES: dict[str, tuple[Scale, Scale]] = {"Images/s": ("log2", "log2"), "Efficiency": ("log2", "linear")}
_AXES = {"ranks": "ranks", "batch": "images a rank"}


def _throughput(rows: Sequence[Row]) -> Iterator[Captioned]:
    for (network, data, batch), group in grouped(rows, "network", "data", "batch").items():
        ideal = _ideal(group)
        chart = _lines("Images/s", "ranks", group, "communication", lambda row: row.images_per_s, ideal)
        yield Captioned(f"Images/s: {network}, {data}, batch {batch} a rank", chart)


def _ideal(rows: Sequence[Row]) -> list[Series]:
    """Draw what the measured rate at the fewest ranks would be, if it grew with the ranks."""
    measured = [row for row in rows if row.basis == "measured" and row.efficiency]
    if not measured:
        return []
    row = measured[0]
    a_rank = (row.images_per_s or 0.0) / row.ranks / (row.efficiency or 1.0)
    last = max(row.ranks for row in rows)
    return [Series("ideal", 5, [(count, count * a_rank) for count in (1.0, float(last))], "ideal")]


def _efficiency(rows: Sequence[Row]) -> Iterator[Captioned]:
    for (way, data, batch), group in grouped(rows, "communication", "data", "batch").items():
        last = float(max(row.ranks for row in group))
        ideal = [Series("ideal", 5, [(1.0, 1.0), (last, 1.0)], "ideal")]
        chart = _lines("Efficiency", "ranks", group, "network", lambda row: row.efficiency, ideal)
        yield Captioned(f"Efficiency: {way}, {data}, batch {batch} a rank", chart)


def _epoch_time(rows: Sequence[Row]) -> Iterator[Captioned]:
    """Show the first epoch and the later ones, by name apart."""
    for (network, data), group in grouped([row for row in rows if row.first_epoch_s], "network", "data").items():
        bars = []
        for (way, batch, ranks), cell in grouped(group, "communication", "batch", "ranks").items():
            whole = {
                "first epoch": [row.first_epoch_s for row in cell],
                "later epochs": [row.later_epoch_s for row in cell],
            }
            for number, (words, values) in enumerate(whole.items()):
                known = [value for value in values if value is not None]
                if known:
                    label = f"{way} b{batch} x{ranks} {words.split()[0]}"
                    bars.append(Bar(label, [Stretch(0.0, median(known), number, f"{label}: {median(known):.2f} s")]))
        chart = BarChart("Seconds an epoch, first and later", "s", bars, ("first epoch", "later epochs"))
        yield Captioned(f"Seconds an epoch: {network}, {data}", chart)


def _speed_up_by_batch(rows: Sequence[Row]) -> Iterator[Captioned]:
    for (way, data, ranks), group in grouped(rows, "communication", "data", "ranks").items():
        if len({row.batch for row in group}) == 1:
            continue
        base = {}
        for key, cell in grouped(group, "network", "basis").items():
            least = min(row.batch for row in cell)
            base[key] = median(row.images_per_s or 0.0 for row in cell if row.batch == least)
        chart = _lines(
            "Speed-up", "batch", group, "network",
            lambda row, base=base: (row.images_per_s or 0.0) / base[row.network, row.basis],  # type: ignore[misc]
        )  # fmt: skip
        yield Captioned(f"Images/s over that of the smallest batch: {way}, {data}, {ranks_in_words(ranks)}", chart)


def _data_kinds(rows: Sequence[Row]) -> Iterator[Captioned]:
    measured = [row for row in rows if row.basis == "measured"]
    kinds = list(dict.fromkeys(row.data for row in measured))
    for (network, way), group in grouped(measured, "network", "communication").items():
        if len({row.data for row in group}) == 1:
            continue
        bars = []
        for (batch, ranks), cell in grouped(group, "batch", "ranks").items():
            for (data,), same in grouped(cell, "data").items():
                rate = median(row.images_per_s or 0.0 for row in same)
                label = f"b{batch} x{ranks} {data}"
                bars.append(Bar(label, [Stretch(0.0, rate, kinds.index(data), f"{label}: {rate:,.1f} images/s")]))
        yield Captioned(f"Images/s by kind of data: {network}, {way}", BarChart("Images/s", "images/s", bars, kinds))


def ranks_in_words(count: int) -> str:
    """Write the number of ranks."""
    return "1 rank" if count == 1 else f"{count} ranks"


def course_figures(rows: Sequence[Row], runs: Path) -> Iterator[_Titled]:
    """Give the sections whose charts follow a cell's first repeat through its run."""
    first = [row for row in rows if row.basis == "measured" and row.status == "success" and not row.repeat]
    courses: list[Captioned] = []
    traces: list[Captioned] = []
    for (network, data, batch), group in grouped(first, "network", "data", "batch").items():
        names = [f"{row.communication}, {ranks_in_words(row.ranks)}" for row in group]
        whose = f"{network}, {data}, batch {batch} a rank"
        subjects = [gather(runs / row.folder, name) for row, name in zip(group, names, strict=True)]
        courses += [replace(figure, caption=f"{figure.caption}: {whose}") for figure in course(subjects)]
        samples = {name: read_samples(runs / row.folder) for row, name in zip(group, names, strict=True)}
        traces += [replace(figure, caption=f"{figure.caption}: {whose}") for figure in _traces(samples)]
    yield "Loss and accuracy", courses
    yield "Utilisation", traces


def _traces(samples: dict[str, list[Sample]]) -> Iterator[Captioned]:
    kinds: dict[str, Callable[[Sample], float | None]] = {
        "Cores busy with the run": lambda each: each.busy_cores,
        "Cores busy on the machine": lambda each: each.machine_busy_cores,
        "Memory, MB": lambda each: each.memory_bytes / 1e6,
        "GPUs busy, share": lambda each: each.gpu_share,
    }
    for caption, value in kinds.items():
        series = [
            Series(name, number, [(each.time - rows[0].time, value(each)) for each in rows])
            for number, (name, rows) in enumerate(samples.items())
        ]
        chart = LineChart(caption, "seconds since the run was launched", series)
        if chart.has_data:
            yield Captioned(caption, chart)
