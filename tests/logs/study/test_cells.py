"""A row of a run: every column from the right file, and the seconds of whole epochs only."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from configs.scaling_study import ScalingCell
from logs.study.cells import PREDICTION_FILE, ScalingRow, measured, predicted
from logs.usage import Sample
from tests.logs import samples


@pytest.mark.parametrize(
    ("share", "first_s", "later_s", "top1"),
    [
        (8, 10.0, 10.0, 0.97),
        (2, 10.0, 10.0, 0.97),
        (1.9, 10.0, None, 0.97),
        (1, 10.0, None, 0.97),
        (1.5, 10.0, None, 0.97),
        (0.3, None, None, None),
    ],
)
def test_an_epoch_that_was_cut_has_no_seconds_and_less_than_an_epoch_no_accuracy(
    tmp_path: Path, share: float, first_s: float | None, later_s: float | None, top1: float | None
) -> None:
    folder = samples.run_folder(tmp_path / "run")
    batch, images = 64, 1198
    told = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(told | {"steps": int(share * images / batch)}))
    usage = {"wall_s": [1.0], "cpu_s": [1.0], "children_cpu_s": [0.0], "peak_memory_bytes": [1]}
    (folder / "usage.json").write_text(json.dumps(usage))
    row = measured(ScalingCell("", "n", "c", "d", 32, 2), 0, folder, 0)
    assert (row.first_epoch_s, row.later_epoch_s, row.top1) == (first_s, later_s, top1)


CELL = ScalingCell("", "n", "c", "d", 32, 2)
USAGE = {
    "wall_s": [9.0, 10.0], "cpu_s": [3.0, 1.0], "children_cpu_s": [0.5, 4.0], "peak_memory_bytes": [100, 50],
}  # fmt: skip


def test_every_column_of_a_row_comes_from_its_place(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", init_s=20.0)
    told = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(told | {"steps": 150, "init_s": 20.0, "mean_auc": 0.5}))
    (folder / "usage.json").write_text(json.dumps(USAGE))
    load = [
        Sample(1.0, 1.0, 1.5, 7, 0.25, 9, [], 0.5), Sample(2.0, 3.0, 3.25, 7, 0.75, 9, [], None),
        Sample(3.0, 2.0, 2.75, 7, None, 9, [], 0.25),
    ]  # fmt: skip
    (folder / "utilisation.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in load))
    row = measured(CELL, 3, folder, 0)
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
    assert row.values()[:10] == ["", "n", "c", "d", 32, 2, 3, "measured", "success", f"{expected:.6g}"]
    assert row.values()[10] == ""


def test_a_run_that_failed_has_a_row_without_numbers(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", status="aborted")
    assert measured(CELL, 1, folder, 0) == ScalingRow(
        "", "n", "c", "d", 32, 2, 1, "measured", "failed", folder="run"
    )  # fmt: skip


def test_a_prediction_is_found_by_its_ranks(tmp_path: Path) -> None:
    told = [{"ranks": ranks, "images_per_s": 100.0 * ranks, "efficiency": 1 / ranks} for ranks in (4, 2)]
    (tmp_path / PREDICTION_FILE).write_text(json.dumps(told), encoding="utf-8")
    cells = [ScalingCell("", "n", "c", "d", 32, ranks) for ranks in (2, 4)]
    assert predicted(cells, tmp_path, 1000) == [
        ScalingRow(
            *cell.axes, 0, "predicted", images_per_s=100.0 * cell.ranks, efficiency=1 / cell.ranks,
            later_epoch_s=10 / cell.ranks, folder=tmp_path.name,
        )
        for cell in cells
    ]  # fmt: skip


def test_idle_servers_and_gpus_count_and_a_machine_is_never_less_busy_than_the_run(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "usage.json").write_text(json.dumps(USAGE))
    load = [Sample(1.0, 2.0, 1.0, 7, 0.0, 9, [], 0.0), Sample(2.0, 2.0, 1.5, 7, 0.5, 9, [], 1.0)]
    (folder / "utilisation.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in load))
    row = measured(CELL, 0, folder, 0)
    assert (row.busy_gpus, row.server_busy_cores, row.other_busy_cores) == (0.25, 0.5, 0.0)


def _row_of(folder: Path, warmup_steps: int = 0, **summary: object) -> ScalingRow:
    """Return the row of a run whose summary has these values too."""
    told = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(told | {"steps": 150} | summary))
    (folder / "usage.json").write_text(json.dumps(USAGE))
    return measured(CELL, 0, folder, warmup_steps)


def test_a_run_that_ended_within_the_warm_up_has_the_rate_of_its_summary(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    assert _row_of(folder, 150, images_per_s=7.0).images_per_s == 7.0
    late = _row_of(folder, 130, images_per_s=7.0).images_per_s
    assert late == pytest.approx(1198 / 10 + 3 * 8), "the last interval begins at step 131"
    (folder / "metrics.jsonl").write_text("")
    row = _row_of(folder, images_per_s=None)
    assert (row.loss, row.images_per_s) == (None, None)


def test_the_seconds_of_an_epoch_are_those_of_a_block_by_its_epochs(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", epochs=12)
    log = folder / "result_0.mll.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if " epoch_st" not in line))
    row = _row_of(folder, steps=225)
    assert (row.first_epoch_s, row.later_epoch_s) == (10.0, 10.0)


@pytest.mark.parametrize(("steps", "auc"), [(17, None), (18, 0.75)])
def test_accuracies_count_from_a_whole_epoch_on_with_a_batch_of_tolerance(
    tmp_path: Path, steps: int, auc: float | None
) -> None:
    # 1,198 images are 18.7 batches of 64.
    row = _row_of(samples.run_folder(tmp_path / "run"), steps=steps, top1=None, mean_auc=0.75)
    assert (row.mean_auc, row.quality) == (auc, auc)


def test_a_log_without_the_number_of_images_has_no_whole_epoch(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    log = folder / "result_0.mll.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "train_examples" not in line
                           and "train_samples" not in line))  # fmt: skip
    row = _row_of(folder)
    assert (row.first_epoch_s, row.later_epoch_s, row.top1) == (None, None, None)


def test_a_run_without_samples_says_nothing_of_cores_and_gpus(tmp_path: Path) -> None:
    row = _row_of(samples.run_folder(tmp_path / "run"))
    assert (row.busy_cores, row.server_busy_cores, row.other_busy_cores, row.busy_gpus) == (None,) * 4


def test_a_row_is_a_success_unless_it_says_otherwise_and_zeros_are_values() -> None:
    row = ScalingRow("", "n", "c", "d", 1, 1, 0, "measured", images_per_s=0.0, top1=0.0, mean_auc=0.5)
    assert (row.status, row.quality) == ("success", 0.0)
    assert row.values()[8:12] == ["success", "0", "", ""]
