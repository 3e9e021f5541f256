"""The operators in the files of PyTorch's profiler."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from train.engine.protocol import Operator

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_COMMUNICATION = ("gloo:", "mpi:", "nccl:", "ncclDevKernel", "ncclKernel")
_BEGINNINGS = ("aten::", *_COMMUNICATION)


def read_operators(path: Path) -> list[Operator]:
    """Return the operators in a file of PyTorch's profiler, ordered by their beginnings.

    They are the kernels of a GPU, where there are some, else the operators that no other operator called.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    base_us = content.get("baseTimeNanoseconds", 0) / 1000
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") in _KERNELS]
    called = (event for event in events if event["name"].startswith(_BEGINNINGS))
    operators = [_operator(event, base_us) for event in kernels or _outermost(called)]
    return sorted(operators, key=lambda operator: operator.begin_us)


def _outermost(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events that lie within no other event of their thread."""
    end, thread = 0.0, None
    for event in sorted(events, key=lambda each: (str(each["tid"]), each["ts"], -each["dur"])):
        if event["tid"] != thread or event["ts"] >= end:
            end, thread = event["ts"] + event["dur"], event["tid"]
            yield event


def _operator(event: dict[str, Any], base_us: float) -> Operator:
    name, begin_us = event["name"], base_us + event["ts"]
    is_communication = name.startswith(_COMMUNICATION)
    return Operator(name.removeprefix("aten::"), round(begin_us), round(begin_us + event["dur"]), is_communication)
