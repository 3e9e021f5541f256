import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.show.chart import Bar, BarChart, LineChart, Series, Stretch
from logs.show.drawing import plot_learning_rate, plot_study, to_svg

pytestmark = pytest.mark.medium


def _lines(*series: Series, **options: Any) -> LineChart:
    return LineChart("y", "x", series, **options)


@settings(max_examples=20)
@given(
    points=st.lists(st.tuples(st.floats(-1e9, 1e9), st.none() | st.floats()), max_size=20),
    target=st.floats(-1e6, 1e6),
)
def test_any_points_make_a_chart_within_its_frame(points: Any, target: float) -> None:
    chart = _lines(Series("a & b", 0, points), targets=[target])
    known = sum(y is not None and abs(y) < 1e15 for _, y in points)
    assert chart.has_data == (known > 1)
    if known:
        spots = re.findall(r' [xy]="([^"]*)"', to_svg(chart))
        assert all(-20 <= float(spot) <= 380 for spot in spots)


@pytest.mark.parametrize(
    "chart",
    [
        _lines(Series("a", 0, [(1, 2.0), (2, None), (3, 1.0)]), Series("b", 1, [(1, 3.0)], "predicted")),
        BarChart("t", "s", [Bar("row", [Stretch(0, 1, 0), Stretch(1, 1, 1)])], ["one", "two"]),
    ],
)
def test_a_drawing_has_the_colours_of_its_page_no_date_and_is_the_same_each_time(chart: Any) -> None:
    drawing = to_svg(chart)
    assert drawing == to_svg(chart)
    assert not re.search(r"#[0-9a-f]{6}|<metadata|<g id=|<svg:", drawing)
    assert "var(--c0)" in drawing
    assert f'aria-label="{chart.title}, {chart.x_name}"' in drawing
    root = ElementTree.fromstring(drawing)
    assert (root.get("role"), root.get("width")) == ("img", "360")


def test_names_are_drawn_as_they_are() -> None:
    name = "cost $x_$ \\frac, a rather long name of a\nrun\x1b[0m"
    drawing = to_svg(BarChart("t", "s", [Bar(name, [Stretch(0, 1, 0), Stretch(1, 1, 1)])]))
    texts = [each.text for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith(("text", "tspan"))]
    assert "cost$x_$\\frac,aratherlongnameofarun[0m" in "".join(map(str, texts)).replace(" ", "")
    assert re.findall(r"<path[^>]*var\(--c(\d)\)", drawing) == ["0", "1"], "a stretch of no length is seen, too"


def test_a_gap_interrupts_a_line_and_many_points_are_thinned_to_the_last() -> None:
    def path(points: Any) -> str:
        drawing = to_svg(_lines(Series("a", 0, points)))
        found = re.search(r'<path d="([^"]*)" style="[^"]*stroke: var\(--c0\)', drawing)
        assert found
        return found[1]

    assert path([(0, 1.0), (1, 1.0), (2, None), (3, 1.0), (4, 2.0)]).count("M") == 2
    many = path([(x, float(x % 7)) for x in range(100_000)])
    assert 100 < many.count("L") <= 301


def test_an_svg_file_stands_alone_in_both_modes_with_axes_a_newcomer_can_read(tmp_path: Path) -> None:
    path = tmp_path / "study.svg"
    curves = {
        "LARS": [(64, 0.9, 0.88, 0.91), (1024, 0.8, 0.7, 0.85)],
        "SGD": [(64, 0.9, 0.9, 0.9), (1024, 0.1, 0, 0.2)],
    }
    plot_study(path, curves, "batch.global_size", "top-1")
    first = path.read_text()
    plot_study(path, curves, "batch.global_size", "top-1")
    assert path.read_text() == first
    words = [each.text for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert {"64", "1024", "LARS", "SGD", "batch.global_size", "top-1"} <= set(words)
    assert "prefers-color-scheme: dark" in first
    assert first.count("opacity: 0.2") == 2, "each curve has its spread"


def test_a_plot_is_named_and_may_be_written_as_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.svg", "a.png"):
        plot_learning_rate(tmp_path / name, [[0, 0.0], [10, 1.0]], "\U0001f9ea")  # DejaVu Sans has no such letter
    assert capsys.readouterr().err.startswith(f"note: {tmp_path}/a.png: boxes stand for letters")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    svg = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert svg.get("aria-label") == "learning rate, step"
    assert "\U0001f9ea" in {each.text for each in svg.iter()}


def _corners(path: str) -> list[tuple[float, float]]:
    """Return the corners of a path of straight lines, in pixels from the top left."""
    numbers = [float(each) for each in re.findall(r"-?[\d.]+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_spread_is_outlined_along_its_lowest_and_back_along_its_highest_values() -> None:
    series = Series("a", 0, [(1, 2.0), (2, 3.0), (4, 1.0)], spread=[(1, 3), (2, 4), (0, 2)])
    drawing = to_svg(_lines(series))
    (outline,) = re.findall(r'<path d="([^"]*)" style="[^"]*opacity: 0.2', drawing)
    (line,) = re.findall(r'<path d="([^"]*)" style="fill: none; stroke: var\(--c0\)', drawing)
    # The line tells the scale: its points are (1, 2), (2, 3) and (4, 1).
    (x1, y2), (x2, y3), (x4, y1) = _corners(line)
    unit = y2 - y1
    expected = [(x1, y1), (x2, y2), (x4, y1 - unit), (x4, y2), (x2, y3 + unit), (x1, y3)]
    assert np.allclose(_corners(outline)[:6], expected, atol=0.02)


def _ticks(chart: LineChart) -> list[float]:
    """Return the numbers in a drawing: the ticks of the horizontal axis, then those of the vertical axis."""
    texts = ElementTree.fromstring(to_svg(chart)).iter("{http://www.w3.org/2000/svg}text")
    return [float(each.text) for each in texts if each.text and re.fullmatch(r"[0-9.]+", each.text)]


def test_epochs_and_ranks_are_marked_by_whole_numbers_and_an_axis_that_is_fitted_shows_its_values() -> None:
    line = [Series("a", 0, [(1.0, 970.0), (2.0, 980.0)])]
    for name in ("epochs", "ranks"):
        ticks = _ticks(LineChart("y", name, line))
        assert [tick for tick in ticks if tick < 100] == [0, 1, 2, 0], f"{name}, and the vertical axis from 0"
    assert 0.5 in _ticks(LineChart("y", "seconds", line))
    fitted = [tick for tick in _ticks(LineChart("y", "epochs", line, y_from_zero=False)) if tick > 2]
    assert len(fitted) >= 3 and all(969 < tick < 981 for tick in fitted)
