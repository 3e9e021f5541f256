"""The layers of a network's table as PyTorch operators on named tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from train.networks.layer import Layer

Operator = Callable[..., Any]
"""Takes a row, the tensors by name, and the outputs of the rows that the row reads; returns the row's output."""


def _convolution(row: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
    weight, bias = tensors[f"{row.name}_weight"], tensors.get(f"{row.name}_bias")
    return functional.conv2d(values, weight, bias, row.stride, row.padding, groups=row.groups)


def _dense(row: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
    """Read the input channel by channel."""
    return functional.linear(values.flatten(1), tensors[f"{row.name}_weight"], tensors.get(f"{row.name}_bias"))


OPERATORS: dict[str, Operator] = {
    "conv": _convolution,
    "relu": lambda _row, _tensors, values: values.relu(),
    "relu6": lambda _row, _tensors, values: functional.relu6(values),
    "silu": lambda _row, _tensors, values: functional.silu(values),
    "sigmoid": lambda _row, _tensors, values: values.sigmoid(),
    "add": lambda _row, _tensors, first, second: first + second,
    "multiply": lambda _row, _tensors, values, gate: values * gate,
    "concat": lambda _row, _tensors, *inputs: torch.cat(inputs, dim=1),
    "max_pool": lambda row, _tensors, values: functional.max_pool2d(values, row.kernel, row.stride, row.padding),
    # Padding counts in averages, as in MXNet.
    "avg_pool": lambda row, _tensors, values: functional.avg_pool2d(values, row.kernel, row.stride, row.padding),
    "global_pool": lambda _row, _tensors, values: functional.adaptive_avg_pool2d(values, 1),
    "dropout": lambda _row, _tensors, values: values,
    "dense": _dense,
}
"""Name of a kind -> operator in inference. What computes the table has the operator of batch norm, see `Layers`."""

_OVERWRITING: dict[str, Operator] = {
    "relu": lambda _row, _tensors, values: values.relu_(),
    "relu6": lambda _row, _tensors, values: functional.relu6(values, inplace=True),
    "add": lambda _row, _tensors, first, second: first.add_(second),
}
"""Name of a kind -> operator that overwrites its first input."""


class Layers:
    """Neighbouring rows of a table, computed one after another.

    Args:
        rows: The rows; they read no output of an earlier row but that which the first of them reads.
        operators: Those that differ between training and ways of inference, by the name of the kind: batch norm, and in
            training dropout.
    """

    def __init__(self, rows: Sequence[Layer], operators: Mapping[str, Operator]) -> None:
        self._source, self._last = rows[0].inputs[0], rows[-1].name
        plain = {**OPERATORS, **operators}
        overwriting = plain | _OVERWRITING
        last_reader = {name: row.name for row in rows for name in row.inputs}
        read = [name for row in rows for name in row.inputs]
        # An input that nothing else reads may be overwritten; that of the first row belongs to the caller.
        alone = {name for name in read if read.count(name) == 1} - {self._source}
        self._rows = [
            (
                row,
                (overwriting if row.inputs[0] in alone else plain)[row.kind.operator],
                # An output that nothing reads any more is freed, which matters in inference.
                [name for name in row.inputs if last_reader[name] == row.name],
            )
            for row in rows
        ]

    def __call__(self, values: Any, tensors: Mapping[str, Any]) -> Any:
        """Return the output of the last row; that of a whole table are the logits, shape (batch, classes).

        Args:
            values: What the first row reads: images or activations of shape [N, C, H, W] in any order of memory, in the
                type of the weights.
            tensors: ``NAME_weight`` of every convolution and dense layer, and ``NAME_bias`` of those that have one.
        """
        outputs = {self._source: values}
        for row, operator, done in self._rows:
            outputs[row.name] = operator(row, tensors, *[outputs[name] for name in row.inputs])
            for name in done:
                outputs.pop(name, None)
        return outputs[self._last]
