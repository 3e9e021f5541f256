"""``torch.compile``, for a network's forward passes and so for its backward passes; operators by Triton's kernels."""

import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import torch

from configs.machine_limits import default_workers

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_PROGRAMS = 64
"""Programs that Dynamo keeps for one function. Its default of 8 is enough for one network, but not for many tests."""


class Compiler:
    """Compiles functions whose arguments never change their shapes.

    Args:
        ranks: Ranks of this machine, which compile at the same time. Inductor alone would start up to 32 processes in
            each of them.

    Attributes:
        has_all: Whether everything is compiled that the run needs. A program that is compiled later is a warning.
    """

    def __init__(self, ranks: int) -> None:
        from torch import _dynamo  # noqa: PLC0415 (takes 1.2 s, which eager runs need not wait for)
        from torch._inductor import config  # noqa: PLC0415 (likewise)

        self.has_all = False
        # A rank that is bound to its share of the machine may use all of that; others share what a quota leaves them.
        share = max(1, (os.cpu_count() or 1) // ranks)
        config.compile_threads = min(config.compile_threads, share, default_workers())
        self._inductor: Callable[..., Callable[..., Any]] = _dynamo.lookup_backend("inductor")
        _dynamo.config.cache_size_limit = max(_MOST_PROGRAMS, _dynamo.config.cache_size_limit)

    def compiled(self, function: Function) -> Function:
        """Return the function, which is compiled as one program when it is called for the first time."""
        compiled: Function = torch.compile(function, dynamic=False, fullgraph=True, backend=self._compile)
        return compiled

    def _compile(self, graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        if self.has_all:
            shapes = ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in examples[:1])
            logger.warning("torch.compile compiles again within the run, for %s, which takes up to a minute", shapes)
        return self._inductor(graph, examples)


def computed_by(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module of kernels, which is imported at the first call.

    The module imports Triton, which PyTorch for CPUs does not have.
    """

    def compute(*args: Any, **settings: Any) -> Any:
        return getattr(import_module(f"train.engine.torch.{module}"), name)(*args, **settings)

    return compute
