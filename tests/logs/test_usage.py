"""What a run used of its machine is read back as it was written, and a file of something else is refused."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from logs.usage import SAMPLES_FILE, USAGE_FILE, Sample, read_samples, read_usage

FULL = Sample(10.0, 3.5, 4.0, 7, 0.25, 9, [0.5, None], 1.25)
BARE = Sample(12, 1, 2, 3)
TOTALS: dict[str, Any] = {key: [1.5, 2.5] for key in ("wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes")}
REMEDY = "repeat the run, or remove the file"


def _write_samples(folder: Path, *rows: Mapping[str, Any]) -> None:
    (folder / SAMPLES_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_samples_come_back_without_a_last_line_that_was_cut(tmp_path: Path) -> None:
    assert read_samples(tmp_path) == []
    _write_samples(tmp_path, asdict(FULL), asdict(BARE))
    with (tmp_path / SAMPLES_FILE).open("a", encoding="utf-8") as file:
        file.write('{"time": 14, "busy')
    assert read_samples(tmp_path) == [FULL, Sample(**{**asdict(BARE), "gpu_shares": []})]
    assert (FULL.rank_busy_cores, BARE.rank_busy_cores) == (2.25, 1)


@pytest.mark.parametrize("change", [{"time": -1.1}, {"gpu_share": 1e18}, {"busy_cores": None}, {"gpu_shares": ["x"]}])
def test_a_line_with_an_impossible_value_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    _write_samples(tmp_path, asdict(FULL), asdict(FULL) | change)
    with pytest.raises(UserError, match=rf"{SAMPLES_FILE}: line 2: is damaged \(.*\); {REMEDY}$"):
        read_samples(tmp_path)


@pytest.mark.parametrize("key", TOTALS)
def test_each_total_is_needed_and_is_a_list_of_numbers(tmp_path: Path, key: str) -> None:
    path = tmp_path / USAGE_FILE
    assert read_usage(tmp_path) == {}
    path.write_text(json.dumps(TOTALS), encoding="utf-8")
    assert read_usage(tmp_path) == TOTALS
    rest = {other: value for other, value in TOTALS.items() if other != key}
    for odd in ({}, {key: 1}, {key: [1, "2"]}, {key: [1, 1e18]}):
        path.write_text(json.dumps(rest | odd), encoding="utf-8")
        with pytest.raises(UserError, match=rf"{path}: is damaged \({key}.*\); {REMEDY}$"):
            read_usage(tmp_path)
