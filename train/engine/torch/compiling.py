"""``torch.compile``, for a network's forward passes and so for its backward passes; operators by Triton's kernels."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch

from configs.machine_limits import default_workers

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_PROGRAMS = 64
"""Programs that Dynamo keeps for one function. Its default of 8 is enough for one network, but not for many tests."""


def compiler(ranks: int) -> Callable[[Function], Function]:
    """Return what compiles a function whose arguments never change their shapes, as one program at its first call.

    Args:
        ranks: Ranks of this machine, which compile at the same time. Inductor alone would start up to 32 processes in
            each of them.
    """
    from torch import _dynamo  # noqa: PLC0415 (takes 1.2 s, which eager runs need not wait for)
    from torch._inductor import config  # noqa: PLC0415 (likewise)

    # A rank that is bound to its share of the machine may use all of that; others share what a quota leaves them.
    share = max(1, (os.cpu_count() or 1) // ranks)
    config.compile_threads = min(config.compile_threads, share, default_workers())
    _dynamo.config.cache_size_limit = max(_MOST_PROGRAMS, _dynamo.config.cache_size_limit)
    return partial(torch.compile, dynamic=False, fullgraph=True)


def computed_by(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module of kernels, which is imported at the first call.

    The module imports Triton, which PyTorch for CPUs does not have.
    """

    def compute(*args: Any, **settings: Any) -> Any:
        return getattr(import_module(f"train.engine.torch.{module}"), name)(*args, **settings)

    return compute
