"""Charts as data: lines, bars and their names. `logs.show.drawing` draws them.

This file imports no plotting library, because matplotlib takes a second to import: figures are built, and tested,
without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_COLOURS = 6
"""`colours.css` has as many colours for series: ``--c0`` to ``--c5``."""

_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (3, 1.5), (9, 3, 2, 3), (12, 4), (5, 2, 2, 2, 2, 2))
_MAX_POINTS = 300
_MAX_DOTS = 40
_MAX_VALUE = 1e15
"""A diverged loss above this value counts as infinite: drawn to scale, it would flatten all other values."""

Scale = Literal["linear", "log2"]
Style = Literal["measured", "predicted", "ideal"]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: The name in the legend.
        number: Colour and dash pattern; 36 numbers look different from each other.
        points: (x, y) pairs; a y that is None leaves a gap.
        style: ``predicted`` is dotted with hollow dots, ``ideal`` a thin grey line.
        spread: (lowest, highest) y at each point, drawn as a shaded area. If empty, none is drawn.
    """

    name: str
    number: int
    points: Sequence[tuple[float, float | None]]
    style: Style = "measured"
    spread: Sequence[tuple[float, float]] = ()

    @property
    def colour(self) -> str:
        """The name of the series' colour in `colours.css`."""
        return "--soft" if self.style == "ideal" else colour_of(self.number)

    @property
    def dashes(self) -> tuple[float, ...]:
        """Lengths of dashes and gaps in pixels; empty for a solid line."""
        if self.style in ("predicted", "ideal"):
            return (1.0, 4.0) if self.style == "predicted" else ()
        return _DASHES[(self.number + self.number // _COLOURS) % len(_DASHES)]

    @property
    def drawable(self) -> list[tuple[float, float]]:
        """The points to draw: at most about 300 of a line, NaN in place of a y that cannot be drawn."""
        stride = max(1, math.ceil(len(self.points) / _MAX_POINTS))
        kept = [*self.points[::stride], *(self.points[-1:] if (len(self.points) - 1) % stride else ())]
        known = [(x, math.nan if y is None else y) for x, y in kept if abs(x) < _MAX_VALUE]
        return [(x, y if abs(y) < _MAX_VALUE else math.nan) for x, y in known]

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points to draw that have a y."""
        return [(x, y) for x, y in self.drawable if not math.isnan(y)]

    @property
    def has_dots(self) -> bool:
        """Whether each point is marked: where points are few, a dot shows where a measurement was."""
        return self.style != "ideal" and len(self.known) <= _MAX_DOTS


@dataclass(frozen=True)
class Stretch:
    """A coloured part of a bar from ``begin`` to ``end``; ``number`` is the colour."""

    begin: float
    end: float
    number: int


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str
    stretches: Sequence[Stretch]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common pair of axes.

    Attributes:
        title: What the vertical axis shows; readers who cannot see the chart hear the title too.
        x_name: Name of the horizontal axis.
        targets: Values to mark on the vertical axis.
        x_scale: ``log2`` needs values above 0, and puts the ticks at powers of two.
        y_from_zero: The vertical axis begins at 0 where no value is below 0.
        x_ticks: Values to mark on the horizontal axis. If empty, round numbers are chosen.
    """

    title: str
    x_name: str
    series: Sequence[Series]
    targets: Sequence[float] = ()
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    y_from_zero: bool = True
    x_ticks: Sequence[float] = ()

    @property
    def has_data(self) -> bool:
        """Whether a series has two points, so that there is a line to draw."""
        return any(len(each.known) > 1 for each in self.series)


@dataclass(frozen=True)
class BarChart:
    """Rows of horizontal stretches over one axis that begins at 0; ``names`` are those of the colours, from 0 on."""

    title: str
    x_name: str
    bars: Sequence[Bar]
    names: Sequence[str] = ()

    @property
    def has_data(self) -> bool:
        """Whether the axis, which ends with the last stretch, has a length."""
        return any(stretch.end > 0 for bar in self.bars for stretch in bar.stretches)


Chart = LineChart | BarChart


@dataclass(frozen=True)
class Captioned:
    """A chart of a page, or of an image file, with the caption above it."""

    caption: str
    chart: Chart


def in_short(number: float) -> str:
    """Return a number in a few characters, as 12.3k for 12300."""
    # The limits are those from which the next shorter form rounds up to a power of ten, as 999,999 to 1e+03k.
    if abs(number) >= 999.5e3:  # noqa: PLR2004
        return f"{number / 1e6:.3g}M"
    if abs(number) >= 9999.5:  # noqa: PLR2004
        return f"{number / 1e3:.3g}k"
    return f"{number:.4g}"


def colour_of(number: int) -> str:
    """Return the name of a colour in `colours.css`; the colours repeat."""
    return f"--c{number % _COLOURS}"
