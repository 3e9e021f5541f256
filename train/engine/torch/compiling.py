"""``torch.compile`` for forward and backward passes, in stages, so that allreduces overlap with the backward pass."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import _dynamo

from configs.schema import Communication
from train.comm.buckets import bucket_cap
from train.networks.arch import Layer, Network, gradient_bytes

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_STAGES = 4
"""Stages of a network. Each costs the host two calls of a compiled function, 0.1 ms, in every micro-batch."""

_MOST_PROGRAMS = 64
"""Programs that Dynamo keeps for one function. Its default of 8 is enough for one network, but not for many tests."""


def stages_of(network: Network, communication: Communication, bytes_per_number: int) -> list[Sequence[Layer]]:
    """Return the rows of a network in stages that are compiled one by one.

    The gradients of a compiled stage arrive together, at the end of its backward pass. So a stage has about as many
    bytes of gradients as a bucket, and at least a quarter of the network's: its allreduces overlap with the backward
    pass of the stages before it. A stage begins where a single tensor is alive, as between residual blocks, and at no
    batch norm or ReLU, which belong to the kernels of the layer before.

    Args:
        network: The table of layers.
        communication: Sizes of buckets.
        bytes_per_number: Of a gradient, but those of batch norm.
    """
    sizes = gradient_bytes(network.parameters, bytes_per_number)
    least = max(
        bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction), sum(sizes) // _MOST_STAGES
    )
    stages: list[list[Layer]] = [[]]
    waiting: set[str] = set()
    size = 0
    for row in reversed(network.layers):
        if size >= least and waiting == {row.name} and stages[0][0].kind not in ("bn", "relu"):
            stages.insert(0, [])
            size = 0
        stages[0].insert(0, row)
        size += sum(gradient_bytes(row.parameters, bytes_per_number))
        waiting = (waiting - {row.name}) | {*row.inputs}
    return [tuple(stage) for stage in stages]


class Compiler:
    """Compiles functions whose arguments never change their shapes.

    Attributes:
        has_all: Whether everything is compiled that the run needs. A program that is compiled later is a warning.
    """

    def __init__(self) -> None:
        self.has_all = False
        _dynamo.config.cache_size_limit = max(_MOST_PROGRAMS, _dynamo.config.cache_size_limit)

    def compiled(self, function: Function) -> Function:
        """Return the function, which is compiled as one program when it is called for the first time."""
        compiled: Function = torch.compile(function, dynamic=False, fullgraph=True, backend=self._compile)
        return compiled

    def _compile(self, graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        if self.has_all:
            shapes = ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in examples[:1])
            logger.warning("torch.compile compiles again within the run, for %s, which takes up to a minute", shapes)
        program: Callable[..., Any] = _dynamo.lookup_backend("inductor")(graph, examples)
        return program
