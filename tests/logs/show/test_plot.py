"""What the pictures of plans, simulations and studies show, before anything is drawn."""

from pathlib import Path
from typing import Any

import pytest

from logs.show import plot
from logs.show.chart import LineChart


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[LineChart]:
    """Return the charts that are handed over to be drawn; `tests/logs/show/test_drawing.py` draws them."""
    charts: list[LineChart] = []
    monkeypatch.setattr(plot, "save_charts", lambda _path, told: charts.extend(told))
    return charts


def _lines(chart: LineChart) -> list[tuple[str, str, list[Any]]]:
    return [(each.name, each.style, list(each.points)) for each in chart.series]


def test_a_validation_has_a_colour_for_each_kind_and_a_line_of_equal_rates(shown: list[LineChart]) -> None:
    plot.plot_validation(Path("a.svg"), [(10, 12, "z"), (1000, 900, "a"), (20, 21, "z")])
    (chart,) = shown
    assert _lines(chart) == [
        ("a", "scatter", [(1000, 900)]), ("z", "scatter", [(10, 12), (20, 21)]),
        ("equal", "ideal", [(10, 10), (1000, 1000)]),
    ]  # fmt: skip
    assert (chart.title, chart.x_name) == ("predicted images/s", "measured images/s")
    assert (chart.x_scale, chart.y_scale) == ("log10", "log10")


def test_a_sweep_has_rates_with_their_spread_and_times_in_order_of_ranks(shown: list[LineChart]) -> None:
    rows = [
        {
            "ranks": ranks,
            "images_per_s": 10 * ranks,
            "low": 9 * ranks,
            "high": 11 * ranks,
            "time_to_train_s": 100 / ranks,
        }
        for ranks in (4, 1)
    ]
    plot.plot_sweep(Path("a.svg"), rows)
    rate, time = shown
    assert _lines(rate) == [("images/s", "measured", [(1, 10), (4, 40)])]
    assert rate.series[0].spread == [(9, 11), (36, 44)]
    assert _lines(time) == [("time to train", "measured", [(1, 100), (4, 25)])]
    assert [(chart.x_name, chart.x_scale, chart.y_scale) for chart in shown] == [("ranks", "log2", "log10")] * 2


def test_collectives_are_drawn_over_bytes_and_over_ranks_in_milliseconds(shown: list[LineChart]) -> None:
    rows = [
        {"ranks": ranks, "bytes": size, "ring": ranks * size, "tree": 2.0, "best": "ring"}
        for ranks in (2, 8) for size in (1000, 4000)
    ]  # fmt: skip
    plot.plot_collectives(Path("a.svg"), rows)
    over_bytes, over_ranks = shown
    assert _lines(over_bytes)[0] == ("ring", "measured", [(1000, 8e6), (4000, 32e6)])
    assert _lines(over_ranks)[0] == ("ring", "measured", [(2, 8e6), (8, 32e6)])
    assert _lines(over_ranks)[1] == ("tree", "measured", [(2, 2000.0), (8, 2000.0)])
    assert [(chart.heading, chart.x_scale) for chart in shown] == [("8 ranks", "log10"), ("4,000 bytes", "log2")]
