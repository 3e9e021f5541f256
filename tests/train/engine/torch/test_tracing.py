"""Operators in a file of PyTorch's profiler: those that no other operator called, or the kernels of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from train.engine.torch.tracing import read_operators


def _event(name: str, begin: float, duration: float, thread: int = 1, category: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": duration, "tid": thread, "pid": 1}


def test_an_operator_that_another_one_called_does_not_count(tmp_path: Path) -> None:
    events = [
        _event("aten::_convolution", 10, 30), _event("aten::conv2d", 10, 40), _event("aten::add", 20, 5, thread=2),
        _event("aten::relu", 50, 5), _event("python", 0, 100), {"ph": "M", "name": "aten::none"},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    assert [(each.begin_us, each.end_us) for each in read_operators(path)] == [(10, 50), (20, 25), (50, 55)]
    path.write_text(json.dumps({"traceEvents": [*events, _event("sgemm", 60, 7, 9, "kernel")]}), encoding="utf-8")
    assert [(each.begin_us, each.end_us) for each in read_operators(path)] == [(60, 67)]


def test_times_count_from_the_base_that_the_file_gives_in_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    content = {"traceEvents": [_event("aten::add", 20, 5)], "baseTimeNanoseconds": 3_000_000}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert [(each.begin_us, each.end_us) for each in read_operators(path)] == [(3020, 3025)]
