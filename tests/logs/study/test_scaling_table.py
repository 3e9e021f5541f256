"""From rows to figures: predicted values stay apart from measured ones, and rates combine as they should."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.scaling_study import ScalingStudy
from configs.study import load_study
from logs.show.chart import LineChart
from logs.show.drawing import to_svg
from logs.study.cells import steady_rate
from logs.study.findings import findings
from logs.study.scaling_figures import _ideal_rate, cell_figures
from logs.study.scaling_table import with_efficiency, write_scaling
from tests.logs.study.rows import scaling_row


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(1, 1e6)), min_size=1), st.integers(0, 100))
def test_a_steady_rate_is_images_by_time_of_the_intervals_after_the_warm_up(
    intervals: list[tuple[int, float]], warmup: int
) -> None:
    batch, end, images, seconds = 32, 0, 0, 0.0
    rows: list[dict[str, Any]] = []
    for steps, rate in intervals:
        if end >= warmup:
            images, seconds = images + steps * batch, seconds + steps * batch / rate
        end += steps
        rows += [{"kind": "interval", "step": end - 1, "images_per_s": rate}, {"kind": "evaluation"}]
    expected = pytest.approx(images / seconds) if images else None
    assert steady_rate(rows, warmup) == expected


def test_efficiency_counts_from_the_best_way_at_the_fewest_ranks() -> None:
    rows = [
        scaling_row(300, ranks=2),
        scaling_row(100, ranks=1, communication="none"),
        scaling_row(80, ranks=1),
        scaling_row(100, ranks=2, network="other"),
    ]
    assert [row.efficiency for row in with_efficiency(rows)] == [1.5, 1, 0.8, 1]


def test_a_prediction_keeps_its_own_base_and_a_line_of_its_own() -> None:
    told = [scaling_row(1000.0 * count, ranks=count, basis="predicted", efficiency=0.9) for count in (1, 2, 64)]
    rows = with_efficiency([*told, scaling_row(100, ranks=1), scaling_row(150, ranks=2)])
    assert [row.efficiency for row in rows] == [0.9, 0.9, 0.9, 1, 0.75]
    titles = dict(cell_figures(rows))
    for section in ("Throughput", "Efficiency"):
        (figure,) = titles[section]
        assert isinstance(figure.chart, LineChart)
        lines = {series.style: [x for x, _ in series.points] for series in figure.chart.series}
        assert lines == {"predicted": [1, 2, 64], "measured": [1, 2], "ideal": [1, 64]}
        assert len(re.findall("predicted: [^e]", to_svg(figure.chart))) == 3
    chart = titles["Throughput"][0].chart
    assert isinstance(chart, LineChart)
    ideal = next(series for series in chart.series if series.style == "ideal")
    assert list(ideal.points) == [(1, 100), (64, 6400)]


def test_efficiency_is_relative_to_the_median_of_the_repeats_of_the_best_way() -> None:
    slow = [
        scaling_row(rate, ranks=1, communication="slow", repeat=number)
        for number, rate in enumerate((10.0, 20.0, 900.0))
    ]
    fast = [
        scaling_row(rate, ranks=1, communication="fast", repeat=number)
        for number, rate in enumerate((50.0, 100.0, 700.0))
    ]
    assert [row.efficiency for row in with_efficiency([*slow, *fast, scaling_row(150, ranks=2)])][3:] == [
        0.5,
        1.0,
        7.0,
        0.75,
    ]


def test_a_split_batch_is_compared_with_the_fastest_way_on_the_fewest_ranks_and_has_no_efficiency() -> None:
    rows = with_efficiency(
        [
            scaling_row(100, ranks=1, batch=16),
            scaling_row(80, ranks=1, batch=16, communication="slow"),
            scaling_row(150, ranks=2),
        ]
    )
    assert [row.efficiency for row in rows] == [1, 0.8, None]
    told = [
        scaling_row(40.0, ranks=4, batch=4, basis="predicted"),
        scaling_row(10.0, ranks=1, batch=16, basis="predicted"),
    ]
    (figure,) = dict(cell_figures([*rows, *told], [16, 32]))["Strong scaling"]
    assert isinstance(figure.chart, LineChart)
    lines = {series.name: list(series.points) for series in figure.chart.series}
    assert lines == {
        "fast": [(1, 1), (2, 1.5)],
        "slow": [(1, 0.8)],
        "fast, predicted": [(1, 1), (4, 4)],
        "ideal": [(1, 1), (4, 4)],
    }
    split = "Strong scaling: batch 16 split over 2 ranks (n, d)"
    sentence = f"{split}: 1.50 times (fast) the images/s on 1 rank; ideal is 2 times."
    assert [each for each in findings(rows, [16, 32]) if "Strong" in each] == [sentence]
    assert not dict(cell_figures(rows))["Strong scaling"]


def test_from_sixteen_times_the_ranks_on_axes_double_and_evenly_spaced_doublings_lie_on_a_line() -> None:
    rows = [scaling_row(100.0 * count, ranks=count, basis="predicted", efficiency=1.0) for count in (1, 4, 16)]
    (figure,) = dict(cell_figures(rows))["Throughput"]
    drawing = to_svg(figure.chart)
    spots = re.findall(r'<use[^>]* x="([0-9.]+)" y="([0-9.]+)"', drawing)
    (x0, y0), (x1, y1), (x2, y2) = ((float(x), float(y)) for x, y in spots)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    for ticked in (1, 2, 4, 8, 16):
        assert f">{ticked}</text>" in drawing


def test_a_table_may_be_written_again_into_a_folder_below_a_new_one(tmp_path: Path) -> None:
    study = load_study("mnist-data-parallel-laptop")
    assert isinstance(study, ScalingStudy)
    for rate in (300, 200):
        write_scaling(study, [scaling_row(rate, ranks=2)], tmp_path / "a" / "b")
        header, row = (tmp_path / "a" / "b" / f"{study.name}.csv").read_bytes().decode().removesuffix("\n").split("\n")
        assert not row.endswith("\r")
        assert dict(zip(header.split(","), row.split(","), strict=True))["images_per_s"] == str(rate)


@pytest.mark.parametrize("ranks", [(1, 4), (4, 1), (2, 4)])
def test_the_ideal_rate_grows_with_the_ranks_from_that_of_the_fewest(ranks: tuple[int, int]) -> None:
    rates = {1: 100.0, 2: 200.0, 4: 300.0}
    rows = with_efficiency([scaling_row(rates[count], ranks=count) for count in ranks])
    (ideal,) = _ideal_rate(rows)
    assert ideal.points == [(1, 100), (4, 400)]
    assert _ideal_rate([scaling_row(1, basis="predicted", efficiency=1.0)]) == []
