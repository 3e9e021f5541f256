"""The layers of a network's table, and its loss, as PyTorch operators on named tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from configs.schema import Loss
from train.engine.formulas import smoothing_weights
from train.networks.arch import Layer

Normalise = Callable[[Layer, Any], Any]
"""Takes a row of batch norm and its input, and returns its output."""


def no_dropout(_layer: Layer, values: Any) -> Any:
    """Return the input: dropout in inference."""
    return values


class Layers:
    """Neighbouring rows of a table, computed one after another.

    Args:
        rows: The rows; they read no output of an earlier row but that which the first of them reads.
        normalise: Batch norm, of training, of inference or folded.
        drop: Dropout; the same arguments.
    """

    def __init__(self, rows: Sequence[Layer], *, normalise: Normalise, drop: Normalise = no_dropout) -> None:
        self._rows, self._source = rows, rows[0].inputs[0]
        self._normalise, self._drop = normalise, drop
        last_reader = {name: row.name for row in self._rows for name in row.inputs}
        # An output that nothing reads any more is freed, which matters in inference.
        self._done = {row.name: [name for name in row.inputs if last_reader[name] == row.name] for row in self._rows}
        read = [name for row in self._rows for name in row.inputs]
        # ReLU and addition overwrite an input that nothing else reads; that of the first row belongs to the caller.
        self._alone = {name for name in read if read.count(name) == 1} - {self._source}

    def __call__(self, values: Any, tensors: Mapping[str, Any]) -> Any:
        """Return the output of the last row; that of a whole table are the logits, shape (batch, classes).

        Args:
            values: What the first row reads: images or activations of shape [N, C, H, W] in any order of memory, in the
                type of the weights.
            tensors: ``NAME_weight`` of every convolution and dense layer, and ``NAME_bias`` of those that have one.
        """
        outputs = {self._source: values}
        for row in self._rows:
            inputs = [outputs[name] for name in row.inputs]
            outputs[row.name] = self._output(row, inputs, tensors)
            for name in self._done[row.name]:
                outputs.pop(name, None)
        return outputs[self._rows[-1].name]

    def _output(  # noqa: PLR0911 (one return per kind)
        self, row: Layer, inputs: Sequence[Any], tensors: Mapping[str, Any]
    ) -> Any:
        first, may_overwrite = inputs[0], row.inputs[0] in self._alone
        if row.kind in ("conv", "dense"):
            return _product(row, first, tensors[f"{row.name}_weight"], tensors.get(f"{row.name}_bias"))
        if row.kind == "bn":
            return self._normalise(row, first)
        if row.kind == "dropout":
            return self._drop(row, first)
        if row.kind == "relu":
            return first.relu_() if may_overwrite else first.relu()
        if row.kind == "sigmoid":
            return first.sigmoid()
        if row.kind == "multiply":
            return first * inputs[1]
        if row.kind == "add":
            return first.add_(inputs[1]) if may_overwrite else first + inputs[1]
        return torch.cat(list(inputs), dim=1) if row.kind == "concat" else _pooled(row, first)


def _product(row: Layer, values: Any, weight: Any, bias: Any) -> Any:
    """Return the output of a convolution or of a dense layer, which reads its input channel by channel."""
    if row.kind == "dense":
        return functional.linear(values.flatten(1), weight, bias)
    return functional.conv2d(values, weight, bias, row.stride, row.padding)


def _pooled(row: Layer, values: Any) -> Any:
    """Return the output of a pooling layer; padding counts in averages, as in MXNet."""
    if row.kind == "global_pool":
        return functional.adaptive_avg_pool2d(values, 1)
    pool = functional.max_pool2d if row.kind == "max_pool" else functional.avg_pool2d
    return pool(values, row.kernel, row.stride, row.padding)


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
        return values.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    first, second, share = labels.unbind(1)
    return share * _picked(values, first) + (1 - share) * _picked(values, second)
