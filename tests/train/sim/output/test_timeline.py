"""The timeline of a step as a Chrome trace: every row that has events has a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.errors import UserError
from train.sim.output.timeline import _COMPUTE, _REDUCE, _WAIT, _event, _reductions, write_trace
from train.sim.step_time import Reduction


def test_the_rows_of_a_trace_have_names(tmp_path: Path) -> None:
    events = [_event("backward", "compute", row, start_s=0.002, duration_s=0.001) for row in (_COMPUTE, _REDUCE, _WAIT)]
    write_trace(tmp_path / "trace.json", events)
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    named = {(each["pid"], each["tid"]): each["args"]["name"] for each in written if each["ph"] == "M"}
    assert {(each["pid"], each["tid"]) for each in written if each["ph"] == "X"} == named.keys()
    assert len(set(named.values())) == 3
    assert (written[-1]["ts"], written[-1]["dur"]) == (2000, 1000)


def test_a_bucket_is_named_by_its_megabytes_and_lasts_from_its_start_to_its_end() -> None:
    (first, second) = _reductions([Reduction(4_200_000, 0.0, 0.01, 0.013), Reduction(99_999, 0.0, 0.013, 0.02)])
    assert (first["name"], second["name"]) == ("bucket 0 (4.2 MB)", "bucket 1 (0.1 MB)")
    assert [(each["ts"], each["dur"]) for each in (first, second)] == [(10_000, 3000), (13_000, 7000)]


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "trace.json"
    with pytest.raises(
        UserError, match=f"{path}: cannot be written: No such file or directory; choose another --trace"
    ):
        write_trace(path, [])
