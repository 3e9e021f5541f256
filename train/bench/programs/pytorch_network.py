"""The table of a network as a PyTorch module, so that the peer trains the same network as this program.

Of our modules, it imports only those that need nothing but the standard library, as `pytorch_peer` does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from train.networks.arch import Layer, Network


class TableNetwork(nn.Module):  # type: ignore[misc]
    """The rows of `train.networks.arch` in order. The parameters have the same order, each bias after its weight.

    Args:
        network: The table.
        bn_momentum: Share of its running statistics that a batch norm keeps at each step; PyTorch's argument is the
            share that it takes from the batch.
        bn_epsilon: Added to the variance in batch norm.
    """

    def __init__(self, network: Network, *, bn_momentum: float = 0.9, bn_epsilon: float = 1e-5) -> None:
        super().__init__()
        self._rows = network.layers
        read = [name for row in self._rows for name in row.inputs]
        # A ReLU overwrites its input if no other row reads that input, as in networks that people write by hand.
        alone = {name for name in read if read.count(name) == 1}
        self.parts = nn.ModuleDict({row.name: _part(row, inplace=row.inputs[0] in alone) for row in self._rows})
        for part in self.parts.values():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum, part.eps = 1 - bn_momentum, bn_epsilon

    def forward(self, images: Any) -> Any:
        """Return logits of shape [batch, classes]."""
        outputs = {"data": images}
        for row in self._rows:
            outputs[row.name] = self.parts[row.name](*(outputs[name] for name in row.inputs))
        return outputs[self._rows[-1].name]


def _part(row: Layer, *, inplace: bool) -> nn.Module:
    """Return the module of one row; `train.engine.mxnet.network` makes the same operator in MXNet."""
    geometry = row.kernel, row.stride, row.padding
    parts: dict[str, Callable[[], Any]] = {
        "conv": lambda: nn.Conv2d(row.in_channels, row.out_channels, *geometry, bias=row.has_bias),
        "bn": lambda: nn.BatchNorm2d(row.out_channels),
        "relu": lambda: nn.ReLU(inplace=inplace),
        "add": _Add,
        "concat": _Concat,
        "max_pool": lambda: nn.MaxPool2d(*geometry),
        "avg_pool": lambda: nn.AvgPool2d(*geometry),
        "global_pool": lambda: nn.AdaptiveAvgPool2d(1),
        "dropout": lambda: nn.Dropout(row.rate),
        "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(row.in_channels * row.in_size**2, row.out_channels)),
    }
    return parts[row.kind]()


class _Add(nn.Module):  # type: ignore[misc]
    def forward(self, one: Any, other: Any) -> Any:
        return one + other


class _Concat(nn.Module):  # type: ignore[misc]
    def forward(self, *inputs: Any) -> Any:
        return torch.cat(inputs, dim=1)
