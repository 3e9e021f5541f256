"""Draws charts with matplotlib, as SVG for a page or as an SVG or PNG file. The only importer of matplotlib.

The same numbers give the same text: an SVG has neither a date nor a random id.
"""

import io
import re
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal
from xml.etree.ElementTree import fromstring, register_namespace, tostring

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from logs.disk import whole_file
from logs.show.chart import BarChart, Captioned, Chart, LineChart, Scale, Series, colour_of, in_short

_COLOURS = Path(__file__).parent / "colours.css"
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

_WIDTH, _HEIGHT = 360, 220
"""Size of a page's line chart in CSS pixels: about as wide as a phone's screen, so that text is not shrunk there."""
_FILE_WIDTH, _FILE_HEIGHT = 560, 380
"""Size of each chart of an image file in CSS pixels."""
_COUNTS = ("epochs", "ranks")
"""Horizontal axes whose ticks are whole numbers."""
_ROW, _LINE, _AXIS = 24, 13, 48
"""Height of a row of a bar chart, of a second line of a label, and of the axis below, in pixels."""
_LABEL_CHARACTERS = 30
_POINTS_PER_INCH = 72
"""The SVG backend writes points; with 72 pixels to the inch, a pixel is a point."""
_PAD = 0.15
"""Empty space around and between the charts of an image file, in inches."""
_PNG_DPI = 144
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.sans-serif": ["DejaVu Sans"],  # each text of an SVG names all of these
    "text.parse_math": False,  # a name may contain dollar signs
    "svg.hashsalt": "chart",
    "font.size": 11.5,
    "axes.axisbelow": True,
    "axes.titlesize": 12.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.8,
    "lines.scale_dashes": False,
    "legend.frameon": False,
}


def to_svg(chart: Chart) -> str:
    """Return a chart as an ``<svg>`` element for a page, which adds the heading and the legend."""
    height = _HEIGHT
    if isinstance(chart, BarChart):
        row = _ROW + _LINE * any(len(bar.label) > _LABEL_CHARACTERS for bar in chart.bars)
        height = row * len(chart.bars) + _AXIS
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, chart)
        axes.set_xlabel(chart.x_name, loc="right")
        return _to_svg(figure, [chart])


def save_charts(path: Path, charts: Sequence[Captioned]) -> None:
    """Draw charts of lines side by side, with captions and legends, into a file: SVG if ``path`` ends so, else PNG.

    Raises:
        UserError: If the file cannot be written.
    """
    size = (_FILE_WIDTH * len(charts) / _POINTS_PER_INCH, _FILE_HEIGHT / _POINTS_PER_INCH)
    ink = _light_colours()["--ink"]
    with rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(w_pad=_PAD, h_pad=_PAD, wspace=0.04)
        figure = Figure(figsize=size, layout=layout, facecolor=_light_colours()["--paper"])
        for place, captioned in enumerate(charts, start=1):
            chart = captioned.chart
            assert isinstance(chart, LineChart)
            axes = figure.add_subplot(1, len(charts), place)
            _draw(axes, chart)
            axes.set_xlabel(chart.x_name)
            axes.set_ylabel(chart.title)
            axes.set_title(captioned.caption, color=ink)
            if len(chart.series) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(0, -0.13), ncols=3, labelcolor=ink)
        with whole_file(path) as file:
            if path.suffix.lower() == ".svg":
                drawn = [each.chart for each in charts]
                svg = _to_svg(figure, drawn, style=_COLOURS.read_text(encoding="utf-8"))
                file.write(f"{svg}\n".encode())
            elif _save(figure, file, format="png", dpi=_PNG_DPI):
                sys.stderr.write(f"note: {path}: boxes stand for letters that the font lacks; an .svg has them\n")


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
    chart = LineChart(metric, swept, series, x_scale="log2", y_from_zero=False, x_ticks=ticks)
    save_charts(path, [Captioned("", chart)])


@cache
def _light_colours() -> dict[str, str]:
    """Return the colours of light mode: CSS variable -> ``#rrggbb``."""
    light, _, _ = _COLOURS.read_text(encoding="utf-8").partition("@media")
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", light))


def _to_svg(figure: Figure, charts: Sequence[Chart], *, style: str = "") -> str:
    """Return matplotlib's SVG with its titles as description, and CSS variables in place of the colours.

    Args:
        figure: Drawn in the colours of light mode.
        charts: What the figure shows.
        style: CSS of a file that stands alone; a page has its own.
    """
    figure.patch.set_visible(bool(style))
    text = io.StringIO()
    _save(figure, text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = fromstring(text.getvalue())
    size = {name: svg.attrib[name].removesuffix("pt") for name in ("width", "height")}
    svg.attrib |= size | {"role": "img", "aria-label": "; ".join(f"{chart.title}, {chart.x_name}" for chart in charts)}
    for group in svg.iter(f"{{{_SVG}}}g"):
        # The ids of groups would not be unique in a page. Those of markers stay: the same id is the same marker.
        group.attrib.pop("id", None)
    register_namespace("", _SVG)
    register_namespace("xlink", _XLINK)
    variables = {colour: f"var({name})" for name, colour in _light_colours().items()}
    written = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), tostring(svg, "unicode"))
    return written.replace(">", f"><style>{style}</style>", 1) if style else written


def _save(figure: Figure, file: IO[Any], **options: Any) -> bool:
    """Write a figure; return whether the font lacks some of its letters, of which matplotlib warns."""
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", "Glyph")
        figure.savefig(file, **options)
    return any("Glyph" in str(each.message) for each in told)


def _draw(axes: Axes, chart: Chart) -> None:
    soft, grid = _light_colours()["--soft"], _light_colours()["--grid"]
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.xaxis.label.set_color(soft)
    axes.yaxis.label.set_color(soft)
    if isinstance(chart, BarChart):
        _draw_bars(axes, chart)
    else:
        _set_axes(axes, chart)
        for target in chart.targets:
            _draw_target(axes, target)
        for series in chart.series:
            _draw_series(axes, series)
    axes.tick_params(which="both", length=0, pad=5, labelcolor=soft)
    axes.grid(axis="x" if isinstance(chart, BarChart) else "y", color=grid, clip_on=False)


def _set_axes(axes: Axes, chart: LineChart) -> None:
    """Make room for all points, spreads and targets, and choose the ticks."""
    points = [point for series in chart.series for point in series.known]
    xs = [x for x, _ in points]
    ys = [y for _, y in points] + [y for series in chart.series for low_high in series.spread for y in low_high]
    ys += chart.targets
    _set_axis(axes, "x", chart.x_scale, xs, from_zero=True)
    _set_axis(axes, "y", chart.y_scale, ys, from_zero=chart.y_from_zero)
    if chart.x_ticks:
        axes.xaxis.set_major_locator(FixedLocator(chart.x_ticks))
    elif chart.x_scale == "linear" and chart.x_name in _COUNTS:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10), integer=True))


def _set_axis(axes: Axes, name: Literal["x", "y"], scale: Scale, values: Sequence[float], *, from_zero: bool) -> None:
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = min(values), max(values)
    if scale == "linear":
        low = min(low, 0.0) if from_zero else low
        room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        # An axis that would begin just above 0 begins at 0.
        is_at_zero = low == 0 or 0 < low <= room
        axes.set(**{f"{name}lim": (0.0 if is_at_zero else low - room, high + room)})
        axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
    else:
        axes.set(**{f"{name}scale": "log", f"{name}lim": (low / 1.1, high * 1.1)})
        axis.set_major_locator(LogLocator(2, numticks=9))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: in_short(value))


def _draw_series(axes: Axes, series: Series) -> None:
    points, colour = series.drawable, _light_colours()[series.colour]
    is_hollow = series.style == "predicted"
    if series.spread:
        xs, lows, highs = [x for x, _ in series.points], *zip(*series.spread, strict=True)
        axes.fill([*xs, *reversed(xs)], [*lows, *reversed(highs)], color=colour, alpha=0.2, linewidth=0, clip_on=False)
    (line,) = axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        label=series.name,
        color=colour,
        clip_on=False,
        linestyle=(0, series.dashes) if series.dashes else "-",
        marker="o" if series.has_dots else "",
        markerfacecolor=_light_colours()["--raised"] if is_hollow else colour,
        markeredgewidth=1.2 if is_hollow else 0,
    )
    if series.style == "ideal":
        line.set_linewidth(1)


def _draw_target(axes: Axes, target: float) -> None:
    axes.axhline(target, color=_light_colours()["--band"], alpha=0.5, linewidth=1, clip_on=False)
    soft, place = _light_colours()["--soft"], ("axes fraction", "data")
    axes.annotate(
        f"target {target:g}", (0, target), (4, 3), xycoords=place, textcoords="offset points", color=soft, fontsize=11
    )


def _draw_bars(axes: Axes, chart: BarChart) -> None:
    longest = max(stretch.end for bar in chart.bars for stretch in bar.stretches)
    axes.set_xlim(0, longest)
    axes.set_ylim(len(chart.bars) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter(lambda value, _: in_short(value))
    axes.set_yticks(range(len(chart.bars)), [_in_lines(bar.label) for bar in chart.bars])
    for row, bar in enumerate(chart.bars):
        for stretch in bar.stretches:
            # A stretch of no length keeps a pixel or two, so that a reader can see it.
            length = max(stretch.end - stretch.begin, 0.005 * longest)
            colour = _light_colours()[colour_of(stretch.number)]
            axes.barh(row, length, 0.66, stretch.begin, color=colour, clip_on=False)


def _in_lines(label: str) -> str:
    """Return a label in one or two lines, without control characters, which XML cannot hold; the end of more is cut."""
    label = "".join(character if character.isprintable() else " " for character in label)
    lines = textwrap.wrap(label, _LABEL_CHARACTERS, max_lines=2, placeholder="…") or [label]
    return "\n".join(lines)
