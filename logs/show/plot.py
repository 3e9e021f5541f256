"""The image files that `plan` and `sweep` write.

Each function takes the path of the file first, and raises `UserError` if the file cannot be written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from logs.show.chart import Captioned, LineChart, Series
from logs.show.drawing import save_charts


def plot_learning_rate(path: Path, schedule: Sequence[Sequence[float]], title: str) -> None:
    """Draw rows of [step, learning rate, ...]."""
    series = Series("learning rate", 0, [(row[0], row[1]) for row in schedule])
    save_charts(path, [Captioned(title, LineChart("learning rate", "step", [series]))])


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
