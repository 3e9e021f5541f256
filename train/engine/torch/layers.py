"""The layers of a network's table, and its loss, as PyTorch operators on named tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from configs.schema import Loss
from train.engine.formulas import smoothing_weights
from train.networks.layer import Layer

Operator = Callable[..., Any]
"""Takes a row, the tensors by name, and the outputs of the rows that the row reads; returns the row's output."""


def _convolution(row: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
    weight, bias = tensors[f"{row.name}_weight"], tensors.get(f"{row.name}_bias")
    return functional.conv2d(values, weight, bias, row.stride, row.padding)


def _dense(row: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
    """Read the input channel by channel."""
    return functional.linear(values.flatten(1), tensors[f"{row.name}_weight"], tensors.get(f"{row.name}_bias"))


OPERATORS: dict[str, Operator] = {
    "conv": _convolution,
    "relu": lambda _row, _tensors, values: values.relu(),
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
                (overwriting if row.inputs[0] in alone else plain)[row.kind.name],
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


def losses_of(logits: Any, labels: Any, loss: Loss) -> Any:
    """Return the losses of the recipe's ``loss`` block in nats, shape (batch,).

    ``sigmoid`` is the binary cross-entropy, the mean over an image's classes, and ``one_hot_sigmoid`` the sum; for the
    smoothed labels see `smoothing_weights`.

    Args:
        logits: Shape (batch, classes).
        labels: Float32, shape (batch,); with ``sigmoid``, zeros and ones of shape (batch, classes); of images that were
            mixed in pairs, shape (batch, 3), see `data.input.batches.TrainingBatch`.
        loss: The recipe's block.
    """
    if loss.kind == "sigmoid":
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1)
    if loss.kind == "one_hot_sigmoid":
        label, other = smoothing_weights(loss, logits.shape[1])
        expected = (label - other) * _picked(logits, labels) + other * logits.sum(dim=-1)
        return -functional.logsigmoid(-logits).sum(dim=-1) - expected
    log_probabilities = functional.log_softmax(logits, dim=-1)
    picked = _picked(log_probabilities, labels)
    if not loss.label_smoothing:
        return -picked
    label, other = smoothing_weights(loss, logits.shape[1])
    return -(label - other) * picked - other * log_probabilities.sum(dim=-1)


def _picked(values: Any, labels: Any) -> Any:
    """Return the value of each image's label, shape (batch,); of two labels, the mean by their shares."""
    if labels.ndim == 1:
        return values.gather(1, labels.long()[:, None])[:, 0]
    first, second, share = labels.unbind(1)
    return share * _picked(values, first) + (1 - share) * _picked(values, second)
