"""Charts as inline SVG text, coloured by the page's CSS: they follow dark mode, scale, and need nothing else. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

__all__ = ["Band", "Bar", "Series", "bar_chart", "line_chart", "ticks"]

_WIDTH, _HEIGHT = 420.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 10.0, 10.0, 38.0
_MOST_POINTS = 300
_DOTS_UP_TO = 40
_ABSURD = 1e15
"""A diverged loss beyond this is as good as infinite, and would flatten all else."""
_ROW = 24.0
_CHARACTER = 7.0
"""A character's width, generously: capitals are wider than this, small letters narrower."""
_LABEL_CHARACTERS = 32

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line: ``number`` picks its colour and dashes, ``style`` what sets it apart from what was measured."""

    name: str
    number: int
    points: Sequence[tuple[float, float | None]]
    style: Literal["", "predicted", "ideal"] = ""


@dataclass(frozen=True)
class Band:
    """A stretch of an axis, or where both ends agree a line, with its name."""

    axis: str
    low: float
    high: float
    name: str


@dataclass(frozen=True)
class Bar:
    """Stretches of one row of a bar chart: (begin, end, colour number, words)."""

    label: str
    stretches: Sequence[tuple[float, float, int, str]]


def ticks(low: float, high: float, count: int = 6, *, least: float = 0.0) -> list[float]:
    """Choose about ``count`` round numbers from ``low`` to ``high``, at least ``least`` apart."""
    if not high > low:
        return [low]
    raw = max((high - low) / count, least)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= raw), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def line_chart(
    title: str, x_name: str, series: Sequence[Series], bands: Sequence[Band] = (), *, zero: bool = True,
    doubling: Literal["", "x", "xy"] = "",
) -> str:  # fmt: skip
    """Draw lines over a common pair of axes; a value that is None, infinite or absurd leaves a gap.

    Args:
        title: What the vertical axis shows, for people who cannot see it as well.
        x_name: The horizontal axis.
        series: The lines.
        bands: References.
        zero: Begin the vertical axis at 0.
        doubling: Axes on which equal steps double a value; all their values are above 0.
    """
    drawn = [(each, _segments(each.points)) for each in series]
    points = [point for _, segments in drawn for segment in segments for point in segment]
    if not points:
        return ""
    xs = [x for x, _ in points] + [end for band in bands if band.axis == "x" for end in (band.low, band.high)]
    ys = [y for _, y in points] + [end for band in bands if band.axis == "y" for end in (band.low, band.high)]
    plot = _Plot(_Axis.over(xs, zero=True, doubles="x" in doubling), _Axis.over(ys, zero=zero, doubles="y" in doubling))
    parts = [plot.axes(x_name), *(plot.band(band) for band in bands)]
    parts += [plot.line(each, segments) for each, segments in drawn]
    last = "; ".join(f"{each.name} ends at {_short(segments[-1][-1][1])}" for each, segments in drawn if segments)
    return _svg(title, f"{title} over {x_name}. {last}.", _HEIGHT, parts)


def bar_chart(title: str, x_name: str, bars: Sequence[Bar], key: Sequence[str] = ()) -> str:
    """Draw rows of horizontal stretches over one axis from 0; ``key`` names the colours, from number 0 on."""
    ends = [end for bar in bars for _, end, _, _ in bar.stretches]
    if not ends or max(ends) <= 0:
        return ""
    labels = [_shortened(bar.label) for bar in bars]
    left = 12 + _CHARACTER * max(map(len, labels))
    height = _TOP + _ROW * len(bars) + _BOTTOM
    scale = (_WIDTH - left - _RIGHT) / max(ends)
    parts = []
    for tick in ticks(0, max(ends)):
        x = left + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{height - _BOTTOM:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - _BOTTOM + 15:.1f}" text-anchor="middle">{_short(tick)}</text>')
    for row, (bar, label) in enumerate(zip(bars, labels, strict=True)):
        y = _TOP + _ROW * row
        parts.append(f'<text x="{left - 8:.1f}" y="{y + 15:.1f}" text-anchor="end">{escape(label)}</text>')
        for begin, end, number, words in bar.stretches:
            x, width = left + begin * scale, max((end - begin) * scale, 1.5)
            box = f'x="{x:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="{_ROW - 8:.1f}" rx="2"'
            parts.append(f'<rect class="fill{number % 6}" {box}><title>{escape(words)}</title></rect>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{height - 5:.1f}" text-anchor="end" class="name">{escape(x_name)}</text>'
    )
    told = "; ".join(words for bar in bars for *_, words in bar.stretches)
    return _svg(title, f"{title}: {told}.", height + (_ROW if key else 0), [*parts, _key(key, height + 8)])


def _key(names: Sequence[str], y: float) -> str:
    """Draw a square of each colour and its name, in a row."""
    parts, x = [], 4.0
    for number, name in enumerate(names):
        parts.append(f'<rect class="fill{number % 6}" x="{x:.1f}" y="{y - 9:.1f}" width="9" height="9" rx="2"/>')
        parts.append(f'<text class="name" x="{x + 14:.1f}" y="{y:.1f}">{escape(name)}</text>')
        x += 30 + 0.85 * _CHARACTER * len(name)
    return "".join(parts)


def _shortened(label: str) -> str:
    half = _LABEL_CHARACTERS // 2
    return label if len(label) <= _LABEL_CHARACTERS else f"{label[: half - 1]}…{label[-half:]}"


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    doubles: bool

    @classmethod
    def over(cls, values: Sequence[float], *, zero: bool, doubles: bool) -> _Axis:
        """Make room for all values."""
        if doubles:
            return cls(min(values) / 1.1, max(values) * 1.1, doubles=True)
        return cls(*_limits(values, zero=zero), doubles=False)

    def share(self, value: float) -> float:
        """Give its place, 0 to 1."""
        if self.doubles:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, least: float = 0.0) -> list[float]:
        """Choose the numbers to write."""
        if not self.doubles:
            return ticks(self.low, self.high, least=least)
        first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        return [2.0**power for power in range(first, last + 1, 1 + (last - first) // 8)]


class _Plot:
    """The mapping from values to the picture, and what is drawn through it."""

    def __init__(self, x: _Axis, y: _Axis) -> None:
        self._x, self._y = x, y

    def at(self, x: float, y: float) -> Point:
        """Place a value."""
        across, up = self._x.share(x), self._y.share(y)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self, x_name: str) -> str:
        """Draw grid, numbers and the name of the horizontal axis."""
        parts = []
        for tick in self._y.ticks():
            _, y = self.at(self._x.low, tick)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
        for tick in self._x.ticks(least=1.0 if x_name == "epochs" else 0.0):
            x, _ = self.at(tick, self._y.low)
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_short(tick)}</text>')
        name = f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end" class="name">{escape(x_name)}</text>'
        return "".join([*parts, name])

    def band(self, band: Band) -> str:
        """Draw a reference."""
        is_x = band.axis == "x"
        x0, y0 = self.at(band.low, self._y.low) if is_x else self.at(self._x.low, band.low)
        x1, y1 = self.at(band.high, self._y.high) if is_x else self.at(self._x.high, band.high)
        box = f'x="{x0:.1f}" y="{y1:.1f}" width="{max(x1 - x0, 1):.1f}" height="{max(y0 - y1, 1):.1f}"'
        near_end = x1 > _WIDTH / 2
        spot = (x0 - 4 if near_end else x1 + 4, y0 - 6) if is_x else (_LEFT + 4, y1 - 4)
        anchor = "end" if is_x and near_end else "start"
        label = (
            f'<text class="name" x="{spot[0]:.1f}" y="{spot[1]:.1f}" text-anchor="{anchor}">{escape(band.name)}</text>'
        )
        return f'<rect class="band" {box}/>{label}'

    def line(self, series: Series, segments: list[list[Point]]) -> str:
        """Draw one line, with dots that say their values where there are few."""
        number = series.number % 6
        parts = []
        for segment in segments:
            path = "L".join("{:.1f} {:.1f}".format(*self.at(*point)) for point in segment)
            kind = f"line line{number} {series.style}".rstrip()
            parts.append(f'<path class="{kind}" d="M{path}"><title>{escape(series.name)}</title></path>')
        points = [point for segment in segments for point in segment]
        # Hollow dots for what nobody measured.
        dot = f"line line{number}" if series.style == "predicted" else f"fill{number}"
        if len(points) <= _DOTS_UP_TO and series.style != "ideal":
            for x, y in points:
                across, down = self.at(x, y)
                words = escape(f"{series.name}: {_short(y)} at {_short(x)}")
                spot = f'cx="{across:.1f}" cy="{down:.1f}" r="2.4"'
                parts.append(f'<circle class="{dot}" {spot}><title>{words}</title></circle>')
        return "".join(parts)


def _svg(title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(description, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _segments(points: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """Cut at gaps, and thin out evenly: more points than pixels are not seen."""
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    kept = [point for index, point in enumerate(points) if index % stride == 0 or index == len(points) - 1]
    segments: list[list[Point]] = [[]]
    for x, y in kept:
        if y is None or not (abs(x) < _ABSURD and abs(y) < _ABSURD):
            segments.append([])
        else:
            segments[-1].append((x, y))
    return [segment for segment in segments if segment]


def _limits(values: Sequence[float], *, zero: bool) -> Point:
    low, high = min(values), max(values)
    low = min(low, 0.0) if zero else low
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return (low if zero and low == 0 else low - room), high + room


def _short(number: float) -> str:
    """Write a number in a few characters."""
    if abs(number) >= 1e6:  # noqa: PLR2004
        return f"{number / 1e6:.3g}M"
    if abs(number) >= 1e4:  # noqa: PLR2004
        return f"{number / 1e3:.3g}k"
    return f"{number:.4g}"
