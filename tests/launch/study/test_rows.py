"""The table of a scaling study: every column from the right file, seconds of whole epochs only, and efficiencies."""

import csv
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from configs.study import ScalingCell
from launch.study.rows import (
    ScalingRow,
    differences,
    measured,
    with_efficiency,
    write_table,
)
from logs.usage import Sample
from tests.launch.study.rows import scaling_row
from tests.logs import samples

CELL = ScalingCell("", "n", "c", "d", 32, 2)
USAGE = {
    "wall_s": [9.0, 10.0], "cpu_s": [3.0, 1.0], "children_cpu_s": [0.5, 4.0], "peak_memory_bytes": [100, 50],
}  # fmt: skip


def _row_of(folder: Path, warmup_steps: int = 0, load: tuple[Sample, ...] = (), **summary: object) -> ScalingRow:
    """Return the row of a run of 8 epochs of 1,198 images in batches of 64, whose summary has these values too."""
    told = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(told | {"steps": 150} | summary))
    (folder / "usage.json").write_text(json.dumps(USAGE))
    if load:
        lines = [json.dumps(asdict(each)) + "\n" for each in load]
        (folder / "utilisation.jsonl").write_text("".join(lines))
    return measured(CELL, 3, folder, warmup_steps)


def test_every_column_of_a_row_comes_from_its_place(tmp_path: Path) -> None:
    load = (
        Sample(1.0, 1.0, 1.5, 7, 0.25, 9, [], 0.5), Sample(2.0, 3.0, 3.25, 7, 0.75, 9, [], None),
        Sample(3.0, 2.0, 2.75, 7, None, 9, [], 0.25),
    )  # fmt: skip
    row = _row_of(samples.run_folder(tmp_path / "run", init_s=20.0), load=load, init_s=20.0, mean_auc=0.5)
    rates = [1198 / 10 + 3 * epoch for epoch in range(1, 9)]
    ends = [0, *(epoch * 1198 // 64 for epoch in range(1, 9))]
    steps = [end - begin for begin, end in pairwise(ends)]
    expected = sum(steps) / sum(count / rate for count, rate in zip(steps, rates, strict=True))
    assert row.images_per_s == pytest.approx(expected)
    assert row == ScalingRow(
        "", "n", "c", "d", 32, 2, 3, "measured", "success", row.images_per_s, first_epoch_s=10.0, later_epoch_s=10.0,
        init_s=20.0, wall_s=10.0, cpu_s=8.5, slowest_cpu_s=5.0, busy_cores=2.0, server_busy_cores=0.375,
        other_busy_cores=0.5, peak_memory_bytes=150, busy_gpus=0.5, input_wait_fraction=0.08,
        comm_exposed_fraction=0.21, loss=2.3 / 8, top1=0.97, mean_auc=0.5, folder="run",
    )  # fmt: skip
    assert row.quality == 0.97
    assert scaling_row(1.0, top1=0.0, mean_auc=0.5).quality == 0.0


@pytest.mark.parametrize(
    ("load", "columns"),
    [
        # Idle servers and GPUs count, and a machine is never less busy than the run.
        ((Sample(1.0, 2.0, 1.0, 7, 0.0, 9, [], 0.0), Sample(2.0, 2.0, 1.5, 7, 0.5, 9, [], 1.0)), (2.0, 0.25, 0.5, 0.0)),
        ((), (None,) * 4),
    ],
)
def test_a_load_that_was_not_sampled_is_left_out(tmp_path: Path, load: tuple[Sample, ...], columns: Any) -> None:
    row = _row_of(samples.run_folder(tmp_path / "run"), load=load)
    assert (row.busy_cores, row.busy_gpus, row.server_busy_cores, row.other_busy_cores) == columns


@pytest.mark.parametrize(
    ("steps", "first_s", "later_s", "quality"),
    [
        # 1,198 images are 18.7 batches of 64; a batch of tolerance, since the last one may be incomplete.
        (17, None, None, None),
        (18, 7.0, None, 0.97),
        (37, 7.0, 10.0, 0.97),
    ],
)
@pytest.mark.parametrize("metric", ["top1", "mean_auc"])
def test_an_epoch_that_was_cut_has_no_seconds_and_less_than_an_epoch_no_accuracy(
    tmp_path: Path, metric: str, steps: int, first_s: float | None, later_s: float | None, quality: float | None
) -> None:
    told: dict[str, Any] = {"top1": None, "mean_auc": None, metric: 0.97}
    folder = samples.run_folder(tmp_path / "run")
    log = folder / "result_0.mll.txt"  # Of 8 epochs of 10 s, the first one is made to take 7.
    log.write_text(log.read_text().replace("1790000020.000 epoch_start", "1790000023.000 epoch_start"))
    row = _row_of(folder, steps=steps, **told)
    assert (row.first_epoch_s, row.later_epoch_s, row.quality) == (first_s, later_s, quality)


def test_the_seconds_of_an_epoch_are_those_of_a_block_by_its_epochs(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", epochs=12)
    log = folder / "result_0.mll.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if " epoch_st" not in line))
    row = _row_of(folder, steps=225)
    assert (row.first_epoch_s, row.later_epoch_s) == (10.0, 10.0)
    log.write_text("".join(line for line in log.read_text().splitlines(True)
                           if "train_examples" not in line and "train_samples" not in line))  # fmt: skip
    assert _row_of(folder).first_epoch_s is None, "how many images an epoch has is not known"


def test_a_run_that_ended_within_the_warm_up_has_the_rate_of_its_summary(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    assert _row_of(folder, 150, images_per_s=7.0).images_per_s == 7.0
    late = _row_of(folder, 130, images_per_s=7.0).images_per_s
    assert late == pytest.approx(1198 / 10 + 3 * 8), "the last interval begins at step 131"
    (folder / "metrics.jsonl").write_text("")
    row = _row_of(folder, images_per_s=None)
    assert (row.loss, row.images_per_s) == (None, None)


def _repeats(*rates: float, **values: Any) -> list[ScalingRow]:
    return [scaling_row(rate, repeat=number, **values) for number, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rows", "efficiencies"),
    [
        # The base is the best way at the fewest ranks, of the same network.
        ([scaling_row(300, ranks=2), scaling_row(100, ranks=1, communication="none"), scaling_row(80, ranks=1),
          scaling_row(100, ranks=2, network="other")], [1.5, 1, 0.8, 1]),
        # Of each way, the median of the repeats.
        ([*_repeats(10.0, 20.0, 900.0, ranks=1, communication="slow"), *_repeats(50.0, 100.0, 700.0, ranks=1),
          scaling_row(150, ranks=2)], [0.1, 0.2, 9, 0.5, 1, 7, 0.75]),
        # A batch that is split over more ranks has no base.
        ([scaling_row(100, ranks=1, batch=16), scaling_row(80, ranks=1, batch=16, communication="slow"),
          scaling_row(150, ranks=2, batch=8)], [1, 0.8, None]),
        ([scaling_row(rate, framework=name, ranks=ranks)
          for name, ranks, rate in (("A", 1, 100), ("A", 2, 150), ("B", 1, 50), ("B", 2, 100))], [1, 0.75, 1, 1]),
        ([scaling_row(rate, data=name, ranks=ranks)
          for name, ranks, rate in (("a", 1, 100), ("b", 2, 150))], [1, 1]),
        # A prediction keeps its own, and a run that failed has none.
        ([scaling_row(900, ranks=1, basis="predicted", efficiency=0.9), scaling_row(100, ranks=2),
          scaling_row(None, ranks=1, status="failed")], [0.9, 1, None]),
    ],
)  # fmt: skip
def test_efficiency_counts_from_the_best_way_at_the_fewest_ranks(
    rows: list[ScalingRow], efficiencies: list[float | None]
) -> None:
    assert [row.efficiency for row in with_efficiency(rows)] == pytest.approx(efficiencies)


def test_a_difference_is_the_ratio_of_medians_of_cells_that_differ_in_one_column_between_those_of_single_runs() -> None:
    rows = [
        *(scaling_row(rate, basis="predicted", ranks=ranks) for rate, ranks in ((150.0, 2), (7.0, 64))),
        *_repeats(100.0, 90.0, 300.0), *_repeats(50.0, 60.0, communication="slow"),
        scaling_row(25.0, communication="slow", data="e"), scaling_row(10.0, data="e", batch=16, framework="F"),
        scaling_row(20.0, data="e", batch=16, framework="G"), scaling_row(5.0, data="e", batch=4, framework="F"),
        scaling_row(None, communication="broken", status="failed"),
    ]  # fmt: skip
    assert [(*told, pytest.approx(ratios)) for *told, ratios in differences(rows)] == [
        ("n, fast, e, batch 16 a rank, 2 ranks", "framework G over F", [2]),
        ("n, d, batch 8 a rank, 2 ranks", "communication slow over fast", [50 / 300, 0.55, 60 / 90]),
        ("n, slow, batch 8 a rank, 2 ranks", "data e over d", [25 / 60, 25 / 55, 0.5]),
        ("F, n, fast, e, 2 ranks", "batch 4 over 16", [0.5]),
        ("n, fast, d, batch 8 a rank, 2 ranks", "basis predicted over measured", [0.5, 1.5, 150 / 90]),
    ]


def test_a_table_has_a_column_for_each_value_and_may_be_written_again(tmp_path: Path) -> None:
    file = tmp_path / "study.csv"
    for rate in (300.0, 1234.5678):
        write_table([scaling_row(rate, top1=0.0, peak_memory_bytes=1 << 30, note="a, b")], file)
    assert b"\r" not in file.read_bytes()
    (row,) = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    known = {name: value for name, value in row.items() if value}
    assert known == {
        "network": "n", "communication": "fast", "data": "d", "batch": "8", "ranks": "2", "repeat": "0",
        "basis": "measured", "status": "success", "images_per_s": "1234.57", "efficiency": "1", "top1": "0",
        "peak_memory_bytes": "1073741824", "note": "a, b",
    }  # fmt: skip
