"""One rank that measures several cases one after another, so that imports and the tuning of cuDNN are paid once."""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def main(name: str, cases: Mapping[str, Mapping[str, Any]]) -> None:
    """Measure the cases in their order; each one is written before the next one begins.

    Args:
        name: A module of `train.bench.programs` whose function ``main`` takes a ``title``.
        cases: Title -> the other arguments of that function.
    """
    program = import_module(f"train.bench.programs.{name}")
    for title, task in cases.items():
        program.main(title=title, **task)
        # A network, its steps and its graphs refer to each other.
        gc.collect()
        torch: Any = sys.modules.get("torch")
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        if torch and torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
