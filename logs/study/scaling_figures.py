"""What a scaling study's page draws: rows to charts. What was predicted is a line of its own, in a style of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from logs.show.figures import course
from logs.show.subject import gather
from logs.show.svg import Bar, Series, bar_chart, line_chart
from logs.study.cells import Row
from logs.usage import Sample, read_samples

__all__ = ["Figure", "cell_figures", "course_figures", "grouped", "ranks_in_words"]

_Titled = tuple[str, list["Figure"]]


@dataclass(frozen=True)
class Figure:
    """A chart, and the series that its key names."""

    caption: str
    drawing: str
    series: Sequence[Series]


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
) -> Figure:  # fmt: skip
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
            style = "predicted" if basis == "predicted" else ""
            series.append(Series(told, names.index(str(name)), points, style))  # type: ignore[arg-type]
    series += extra
    places = [place for each in series for place, _ in each.points]
    # Where ranks go far, what few of them do would be lost in the corner.
    goes_far = x == "ranks" and max(places) >= _FAR * min(places)
    drawing = line_chart(title, _AXES[x], series, doubling=_DOUBLING[title] if goes_far else "")
    return Figure("", drawing, series)


_FAR = 16
_DOUBLING: dict[str, Literal["x", "xy"]] = {"Images/s": "xy", "Efficiency": "x"}
_AXES = {"ranks": "ranks", "batch": "images a rank"}


def _throughput(rows: Sequence[Row]) -> Iterator[Figure]:
    for (network, data, batch), group in grouped(rows, "network", "data", "batch").items():
        ideal = _ideal(group)
        figure = _lines("Images/s", "ranks", group, "communication", lambda row: row.images_per_s, ideal)
        yield replace(figure, caption=f"Images/s: {network}, {data}, batch {batch} a rank")


def _ideal(rows: Sequence[Row]) -> list[Series]:
    """Draw what the measured rate at the fewest ranks would be, if it grew with the ranks."""
    measured = [row for row in rows if row.basis == "measured" and row.efficiency]
    if not measured:
        return []
    row = measured[0]
    a_rank = (row.images_per_s or 0.0) / row.ranks / (row.efficiency or 1.0)
    last = max(row.ranks for row in rows)
    return [Series("ideal", 5, [(count, count * a_rank) for count in (1.0, float(last))], "ideal")]


def _efficiency(rows: Sequence[Row]) -> Iterator[Figure]:
    for (way, data, batch), group in grouped(rows, "communication", "data", "batch").items():
        last = float(max(row.ranks for row in group))
        ideal = [Series("ideal", 5, [(1.0, 1.0), (last, 1.0)], "ideal")]
        figure = _lines("Efficiency", "ranks", group, "network", lambda row: row.efficiency, ideal)
        yield replace(figure, caption=f"Efficiency: {way}, {data}, batch {batch} a rank")


def _epoch_time(rows: Sequence[Row]) -> Iterator[Figure]:
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
                    bars.append(Bar(label, [(0.0, median(known), number, f"{label}: {median(known):.2f} s")]))
        drawing = bar_chart("Seconds an epoch, first and later", "s", bars)
        yield Figure(f"Seconds an epoch: {network}, {data}", drawing, ())


def _speed_up_by_batch(rows: Sequence[Row]) -> Iterator[Figure]:
    for (way, data, ranks), group in grouped(rows, "communication", "data", "ranks").items():
        if len({row.batch for row in group}) == 1:
            continue
        base = {}
        for key, cell in grouped(group, "network", "basis").items():
            least = min(row.batch for row in cell)
            base[key] = median(row.images_per_s or 0.0 for row in cell if row.batch == least)
        figure = _lines(
            "Speed-up", "batch", group, "network",
            lambda row, base=base: (row.images_per_s or 0.0) / base[row.network, row.basis],  # type: ignore[misc]
        )  # fmt: skip
        yield replace(
            figure, caption=f"Images/s over that of the smallest batch: {way}, {data}, {ranks_in_words(ranks)}"
        )


def _data_kinds(rows: Sequence[Row]) -> Iterator[Figure]:
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
                bars.append(Bar(label, [(0.0, rate, kinds.index(data), f"{label}: {rate:,.1f} images/s")]))
        yield Figure(f"Images/s by kind of data: {network}, {way}", bar_chart("Images/s", "images/s", bars), ())


def ranks_in_words(count: int) -> str:
    """Write the number of ranks."""
    return "1 rank" if count == 1 else f"{count} ranks"


def course_figures(rows: Sequence[Row], runs: Path) -> Iterator[_Titled]:
    """Give the sections whose charts follow a cell's first repeat through its run."""
    first = [row for row in rows if row.basis == "measured" and row.status == "success" and not row.repeat]
    courses: list[Figure] = []
    traces: list[Figure] = []
    for (network, data, batch), group in grouped(first, "network", "data", "batch").items():
        names = [f"{row.communication}, {ranks_in_words(row.ranks)}" for row in group]
        key = [Series(name, number, ()) for number, name in enumerate(names)]
        whose = f"{network}, {data}, batch {batch} a rank"
        subjects = [gather(runs / row.folder, name) for row, name in zip(group, names, strict=True)]
        courses += [Figure(f"{caption}: {whose}", drawing, key) for caption, drawing in course(subjects)]
        samples = {name: read_samples(runs / row.folder) for row, name in zip(group, names, strict=True)}
        traces += [replace(figure, caption=f"{figure.caption}: {whose}") for figure in _traces(samples)]
    yield "Loss and accuracy", courses
    yield "Utilisation", traces


def _traces(samples: dict[str, list[Sample]]) -> Iterator[Figure]:
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
        drawing = line_chart(caption, "seconds since the run was launched", series)
        if drawing:
            yield Figure(caption, drawing, series)
