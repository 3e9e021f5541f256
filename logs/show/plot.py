"""Figures. The only importer of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from configs.errors import UserError

__all__ = ["plot_collectives", "plot_learning_rate", "plot_study", "plot_sweep", "plot_validation"]


def plot_learning_rate(path: Path, schedule: Sequence[Sequence[float]], title: str) -> None:
    """Draw rows of [step, learning rate, ...] into a PNG.

    Raises:
        UserError: The file cannot be written.
    """
    figure = _figure(8, 4)
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="learning rate")
    axes.plot([row[0] for row in schedule], [row[1] for row in schedule])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _save(figure, path)


def plot_validation(path: Path, rows: Sequence[tuple[float, float, str]]) -> None:
    """Draw predicted over measured images/s, each row with the kind of its interval.

    Raises:
        UserError: The file cannot be written.
    """
    figure = _figure(6, 6)
    axes = figure.add_subplot(xlabel="measured images/s", ylabel="predicted images/s", xscale="log", yscale="log")
    for kind in sorted({kind for _, _, kind in rows}):
        pairs = [(measured, predicted) for measured, predicted, each in rows if each == kind]
        axes.scatter([pair[0] for pair in pairs], [pair[1] for pair in pairs], s=12, alpha=0.6, label=kind)
    ends = [min(row[0] for row in rows), max(row[0] for row in rows)]
    axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
    axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, path)


def plot_sweep(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw images/s with their interval, and time to train, over the ranks of a sweep's rows.

    Raises:
        UserError: The file cannot be written.
    """
    figure = _figure(10, 4)
    rows = sorted(rows, key=lambda row: row["ranks"])
    ranks = [row["ranks"] for row in rows]
    rate = figure.add_subplot(1, 2, 1, xlabel="ranks", ylabel="images/s", xscale="log", yscale="log")
    rate.fill_between(ranks, [row["low"] for row in rows], [row["high"] for row in rows], alpha=0.2)
    rate.plot(ranks, [row["images_per_s"] for row in rows], marker=".")
    time = figure.add_subplot(1, 2, 2, xlabel="ranks", ylabel="time to train, s", xscale="log", yscale="log")
    time.plot(ranks, [row["time_to_train_s"] for row in rows], marker=".")
    for axes in (rate, time):
        axes.grid(alpha=0.3)
    _save(figure, path)


def plot_collectives(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw each allreduce's milliseconds over bytes at the most ranks, and over ranks at the most bytes.

    Raises:
        UserError: The file cannot be written.
    """
    figure = _figure(12, 5)
    names = [name for name in rows[0] if name not in ("ranks", "bytes", "best")]
    for place, along, fixed in ((1, "bytes", "ranks"), (2, "ranks", "bytes")):
        held = max(row[fixed] for row in rows)
        some = [row for row in rows if row[fixed] == held]
        title = f"{held:,.0f} {fixed}"
        axes = figure.add_subplot(1, 2, place, title=title, xlabel=along, ylabel="ms", xscale="log", yscale="log")
        for name in names:
            axes.plot([row[along] for row in some], [1e3 * row[name] for row in some], marker=".", label=name)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    _save(figure, path)


def plot_study(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float, float, float]]], swept: str, metric: str
) -> None:
    """Draw each curve's rows of (swept value, mean, lowest, highest metric), as PNG or, by the file's name, SVG.

    Raises:
        UserError: The file cannot be written.
    """
    figure = _figure(7, 4)
    axes = figure.add_subplot(xlabel=swept, ylabel=metric, xscale="log")
    for marker, (name, rows) in zip("os^vD*", curves.items(), strict=False):
        xs = [row[0] for row in rows]
        axes.fill_between(xs, [row[2] for row in rows], [row[3] for row in rows], alpha=0.2)
        axes.plot(xs, [row[1] for row in rows], marker=marker, label=name)
    ticks = sorted({row[0] for rows in curves.values() for row in rows})
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    is_svg = path.suffix == ".svg"
    # Text as text and no date: a small file that is the same for the same numbers.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "figure"}
    try:
        with rc_context(settings):
            figure.savefig(
                path, format="svg" if is_svg else "png", dpi=120, metadata={"Date": None} if is_svg else None
            )
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --plot") from None
