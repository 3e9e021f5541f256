"""A row of a run: the seconds of whole epochs only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.scaling_study import ScalingCell
from logs.study.cells import measured
from tests.logs import samples


@pytest.mark.parametrize(
    ("share", "first_s", "later_s", "top1"), [(8, 10.0, 10.0, 0.76), (1.5, 10.0, None, 0.76), (0.3, None, None, None)]
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
    row = measured(ScalingCell("n", "c", "d", 32, 2), 0, folder, 0)
    assert (row.first_epoch_s, row.later_epoch_s, row.top1) == (first_s, later_s, top1)
