"""The image files that `plan`, `simulate` and `sweep` write.

Each function takes the path of the file first, and raises `UserError` if the file cannot be written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logs.show.chart import Captioned, LineChart, Scale, Series
from logs.show.drawing import save_charts


def plot_learning_rate(path: Path, schedule: Sequence[Sequence[float]], title: str) -> None:
    """Draw rows of [step, learning rate, ...]."""
    series = Series("learning rate", 0, [(row[0], row[1]) for row in schedule])
    save_charts(path, [Captioned(title, LineChart("learning rate", "step", [series]))])


def plot_validation(path: Path, rows: Sequence[tuple[float, float, str]]) -> None:
    """Draw rows of (measured images/s, predicted images/s, how the prediction was made)."""
    series = [
        Series(kind, number, [(measured, predicted) for measured, predicted, each in rows if each == kind], "scatter")
        for number, kind in enumerate(sorted({kind for _, _, kind in rows}))
    ]
    rates = [measured for measured, _, _ in rows]
    series.append(Series("equal", 0, [(rate, rate) for rate in (min(rates), max(rates))], "ideal"))
    save_charts(path, [_log_chart("predicted images/s", "measured images/s", series)])


def plot_sweep(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw images/s with their interval, and time to train, over the ranks of a sweep's rows."""
    rows = sorted(rows, key=lambda row: row["ranks"])
    spread = [(row["low"], row["high"]) for row in rows]
    rate = Series("images/s", 0, [(row["ranks"], row["images_per_s"]) for row in rows], spread=spread)
    time = Series("time to train", 0, [(row["ranks"], row["time_to_train_s"]) for row in rows])
    save_charts(path, [_log_chart("images/s", "ranks", [rate]), _log_chart("time to train, s", "ranks", [time])])


def plot_collectives(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw each allreduce's milliseconds, over bytes at the most ranks, and over ranks at the most bytes."""
    names = [name for name in rows[0] if name not in ("ranks", "bytes", "best")]
    charts = []
    for along, fixed in (("bytes", "ranks"), ("ranks", "bytes")):
        most = max(row[fixed] for row in rows)
        kept = [row for row in rows if row[fixed] == most]
        series = [
            Series(name, number, [(row[along], 1e3 * row[name]) for row in kept]) for number, name in enumerate(names)
        ]
        charts.append(_log_chart("ms", along, series, caption=f"{most:,.0f} {fixed}"))
    save_charts(path, charts)


def plot_study(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float, float, float]]], swept: str, metric: str
) -> None:
    """Draw each curve's rows of (swept value, mean, lowest, highest metric)."""
    series = [
        Series(name, number, [(row[0], row[1]) for row in rows], spread=[(row[2], row[3]) for row in rows])
        for number, (name, rows) in enumerate(curves.items())
    ]
    ticks = sorted({row[0] for rows in curves.values() for row in rows})
    chart = LineChart(metric, swept, series, x_scale="log10", y_from_zero=False, x_ticks=ticks)
    save_charts(path, [Captioned("", chart)])


def _log_chart(title: str, x_name: str, series: Sequence[Series], caption: str = "") -> Captioned:
    x_scale: Scale = "log2" if x_name == "ranks" else "log10"
    return Captioned(caption, LineChart(title, x_name, series, x_scale=x_scale, y_scale="log10"))
