"""The lines of a scaling study's page, with their names, units and colours."""

import json
from pathlib import Path
from typing import Any

from launch.study.figures import cell_figures, course_figures
from launch.study.rows import with_efficiency
from logs.show.chart import Captioned, LineChart
from logs.usage import SAMPLES_FILE
from tests.launch.study.rows import scaling_row
from tests.logs import samples


def _lines(figure: Captioned) -> dict[str, tuple[int, str, list[Any]]]:
    assert isinstance(figure.chart, LineChart)
    return {each.name: (each.number, each.style, list(each.points)) for each in figure.chart.series}


def test_courses_of_a_cell_s_ways_are_lines_of_one_chart_named_by_way_and_ranks(tmp_path: Path) -> None:
    for name, load in (("one", 1.5), ("two", 2.5)):
        run = samples.run_folder(tmp_path / name)
        with (run / SAMPLES_FILE).open("w", encoding="utf-8") as file:
            for time in (1e9, 1e9 + 1):
                sample = {"time": time, "busy_cores": load, "machine_busy_cores": 3.0, "memory_bytes": 10**9}
                file.write(json.dumps(sample) + "\n")
    rows = [scaling_row(1.0, ranks=1, folder="one"), scaling_row(1.0, communication="slow", folder="two")]
    # Followed are first repeats that succeeded.
    rows += [scaling_row(1.0, basis="predicted", folder="gone"), scaling_row(2.0, repeat=1, folder="gone")]
    rows += [scaling_row(None, status="failed", folder="gone")]
    sections = dict(course_figures(rows, tmp_path))
    assert list(sections) == ["Loss and accuracy", "Utilisation"]
    for figures in sections.values():
        assert [list(_lines(figure)) for figure in figures] == [["fast, 1 rank", "slow, 2 ranks"]] * len(figures)
        assert all(figure.caption.endswith(": n, d, batch 8 a rank") for figure in figures)
    assert [figure.caption.split(":")[0] for figure in sections["Loss and accuracy"]] == [
        "Accuracy by epoch", "Accuracy by time", "Training loss by epoch", "Training loss by time",
    ]  # fmt: skip
    cores = _lines(sections["Utilisation"][0])
    assert [points for _, _, points in cores.values()] == [[(0.0, 1.5), (1.0, 1.5)], [(0.0, 2.5), (1.0, 2.5)]]


def test_predictions_have_lines_of_their_own_beside_the_ideal_of_the_measured_rates() -> None:
    told = [scaling_row(1000.0 * count, ranks=count, basis="predicted", efficiency=0.9) for count in (1, 2, 64)]
    rows = with_efficiency([*told, scaling_row(150, ranks=2), scaling_row(100, ranks=1)])
    sections = dict(cell_figures(rows))
    (rates,), (shares,) = sections["Throughput"], sections["Efficiency"]
    assert _lines(rates) == {
        "fast, predicted": (0, "predicted", [(1, 1000), (2, 2000), (64, 64000)]),
        "fast": (0, "measured", [(1, 100), (2, 150)]),
        "ideal": (5, "ideal", [(1, 100), (64, 6400)]),
    }
    assert _lines(shares)["n"][2] == [(1, 1), (2, 0.75)]
    assert list(_lines(dict(cell_figures(told))["Throughput"][0])) == ["fast, predicted"], "no ideal of a prediction"


def test_a_batch_that_is_split_is_compared_with_the_best_way_at_the_fewest_ranks_of_the_same_basis() -> None:
    rows = [
        scaling_row(100, ranks=2, batch=16), scaling_row(80, ranks=2, batch=16, communication="slow"),
        scaling_row(150, ranks=4), scaling_row(99, ranks=4, communication="slow", framework="B"),
        scaling_row(40, ranks=8, batch=4, basis="predicted"), scaling_row(10, ranks=2, batch=16, basis="predicted"),
    ]  # fmt: skip
    (figure,) = dict(cell_figures(rows, [32, 64]))["Strong scaling"]
    assert figure.caption == "Images/s relative to the fewest ranks: n, d, batch 32 in all"
    assert _lines(figure) == {
        "fast": (0, "measured", [(2, 1), (4, 1.5)]),
        "slow": (1, "measured", [(2, 0.8)]),
        "fast, predicted": (0, "predicted", [(2, 1), (8, 4)]),
        "ideal": (5, "ideal", [(2, 1), (8, 4)]),
    }
    assert dict(cell_figures([rows[0], rows[4]], [32]))["Strong scaling"] == [], "no base of the same basis"
    assert dict(cell_figures(rows))["Strong scaling"] == []
