"""The timeline of a step as a Chrome trace: every row that has events has a name."""

from __future__ import annotations

import json
from pathlib import Path

from train.sim.output.timeline import _COMPUTE, _REDUCE, _WAIT, _event, write_trace


def test_the_rows_of_a_trace_have_names(tmp_path: Path) -> None:
    events = [_event("backward", "compute", row, start_s=0.002, duration_s=0.001) for row in (_COMPUTE, _REDUCE, _WAIT)]
    write_trace(tmp_path / "trace.json", events)
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    named = {(each["pid"], each["tid"]): each["args"]["name"] for each in written if each["ph"] == "M"}
    assert {(each["pid"], each["tid"]) for each in written if each["ph"] == "X"} == named.keys()
    assert len(set(named.values())) == 3
    assert (written[-1]["ts"], written[-1]["dur"]) == (2000, 1000)
