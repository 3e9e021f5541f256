"""What a run used of its machine is read back as it was written, and a file of something else is refused."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from logs.usage import SAMPLES_FILE, USAGE_FILE, Sample, read_samples, read_usage

FULL = Sample(10.0, 3.5, 4.0, 7, 0.25, 9, [0.5, None], 1.25)
BARE = Sample(12, 1, 2, 3)


def test_samples_come_back_without_a_last_line_that_was_cut(tmp_path: Path) -> None:
    assert read_samples(tmp_path) == []
    lines = "".join(json.dumps(asdict(sample)) + "\n" for sample in (FULL, BARE))
    (tmp_path / SAMPLES_FILE).write_text(lines + '{"time": 14, "busy', encoding="utf-8")
    assert read_samples(tmp_path) == [FULL, Sample(**{**asdict(BARE), "gpu_shares": []})]
    assert (FULL.rank_busy_cores, BARE.rank_busy_cores) == (2.25, 1)


@pytest.mark.parametrize(
    "change", [{"time": "10"}, {"busy_cores": None}, {"gpu_share": "x"}, {"gpu_shares": ["x"]}, {"more": 1},
     {"server_busy_cores": "x"}],
    ids=str,
)  # fmt: skip
def test_a_line_that_is_no_sample_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / SAMPLES_FILE).write_text(json.dumps(asdict(FULL) | change) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"{SAMPLES_FILE}: line 1 "):
        read_samples(tmp_path)


def test_totals_are_those_of_the_file_and_none_without_it(tmp_path: Path) -> None:
    assert read_usage(tmp_path) == {}
    totals = {key: [1.5, 2.5] for key in ("wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes")}
    (tmp_path / USAGE_FILE).write_text(json.dumps(totals), encoding="utf-8")
    assert read_usage(tmp_path) == totals
    (tmp_path / USAGE_FILE).write_text(json.dumps(totals | {"more": [-0.5]}), encoding="utf-8")
    assert read_usage(tmp_path)["more"] == [-0.5], "a counter may go back by a moment"


def test_totals_that_lack_one_or_are_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / USAGE_FILE).write_text('{"wall_s": [1]}', encoding="utf-8")
    with pytest.raises(UserError, match=USAGE_FILE):
        read_usage(tmp_path)
    (tmp_path / USAGE_FILE).unlink()
    (tmp_path / USAGE_FILE).mkdir()
    with pytest.raises(UserError, match="it is no file"):
        read_usage(tmp_path)


@pytest.mark.parametrize("lost", ["wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes"])
def test_each_total_is_needed_and_is_a_list_of_numbers(tmp_path: Path, lost: str) -> None:
    path = tmp_path / USAGE_FILE
    totals: dict[str, Any] = {key: [1] for key in ("wall_s", "cpu_s", "children_cpu_s", "peak_memory_bytes")}
    for odd in ({}, {lost: 1}, {lost: [1, "2"]}, {lost: [1, 1e18]}, {lost: [-1.1]}, {lost: None}):
        rest = {key: value for key, value in totals.items() if key != lost}
        path.write_text(json.dumps(rest | odd), encoding="utf-8")
        with pytest.raises(UserError) as caught:
            read_usage(tmp_path)
        words = "cannot be read (a total is no number of each rank); repeat the run, or remove the file"
        assert str(caught.value) == f"{path}: {words}"
    path.write_text(json.dumps(totals | {lost: [-1, 9.9e17]}), encoding="utf-8")
    assert read_usage(tmp_path)[lost] == [-1, 9.9e17]


@pytest.mark.parametrize("key", [
    "time", "busy_cores", "machine_busy_cores", "memory_bytes", "gpu_share", "gpu_memory_bytes", "server_busy_cores",
])  # fmt: skip
def test_each_number_of_a_sample_is_one_that_can_be(tmp_path: Path, key: str) -> None:
    path = tmp_path / SAMPLES_FILE
    for odd in (-1.1, 1e18, "1"):
        path.write_text(
            json.dumps(asdict(FULL)) + "\n" + json.dumps(asdict(FULL) | {key: odd}) + "\n", encoding="utf-8"
        )
        with pytest.raises(UserError) as caught:
            read_samples(tmp_path)
        words = "has a value that is no number, or cannot be; repeat the run, or remove the file"
        assert str(caught.value) == f"{path}: line 2 {words}"
    path.write_text(json.dumps(asdict(FULL) | {key: -1}) + "\n", encoding="utf-8")
    assert asdict(read_samples(tmp_path)[0])[key] == -1


def test_samples_in_another_encoding_are_refused(tmp_path: Path) -> None:
    (tmp_path / SAMPLES_FILE).write_bytes(b"\xff\n")
    with pytest.raises(
        UserError, match=rf"{SAMPLES_FILE}: cannot be read \(.*utf-8.*\); repeat the run, or remove the"
    ):
        read_samples(tmp_path)
