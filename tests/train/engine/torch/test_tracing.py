"""Operators in a file of PyTorch's profiler: those that no other operator called, or the kernels of a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from train.engine.protocol import Operator
from train.engine.torch.engine import read_operators


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
    # The kernels of a GPU count alone, from the base that the file gives in nanoseconds.
    content = {"traceEvents": [*events, _event("sgemm", 60, 7, 9, "kernel")], "baseTimeNanoseconds": 3_000_000}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert [(each.begin_us, each.end_us) for each in read_operators(path)] == [(3060, 3067)]


@pytest.mark.parametrize(
    ("name", "category", "told", "is_communication"),
    [
        ("aten::conv2d", "cpu_op", "conv2d", False),
        ("gloo:all_reduce", "cpu_op", "gloo:all_reduce", True),
        ("ncclDevKernel_AllReduce", "kernel", "ncclDevKernel_AllReduce", True),
        ("Memcpy HtoD", "gpu_memcpy", "Memcpy HtoD", False),
    ],
)
def test_an_operator_has_its_own_name_and_sums_over_the_ranks_are_told_apart(
    tmp_path: Path, name: str, category: str, told: str, is_communication: bool
) -> None:
    path = tmp_path / "trace.json"
    events = [_event(name, 20.25, 5.5, category=category), _event("cudaLaunchKernel", 19, 1, category="cuda_runtime")]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    # 20.25 is rounded to 20, and the end, 25.75, to 26.
    assert read_operators(path) == [Operator(told, 20, 26, is_communication)]
