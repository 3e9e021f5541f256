"""Inference without batch norm: running statistics, gamma and beta become part of the convolutions.

`train.engine.formulas.folded_batch_norm` has the formula.
"""

from collections.abc import Mapping
from typing import Any

import torch

from train.engine.formulas import folded_batch_norm
from train.engine.torch.layers import Layers
from train.networks.arch import Network
from train.networks.layer import Layer


class FoldedInference:
    """The network from images to logits, with every batch norm folded.

    Args:
        network: The table of layers.
        tensors: Float32 weights and running statistics by name, as they are now.
        epsilon: Added to the variance.
        dtype: Type in which convolutions and dense layers compute.
    """

    def __init__(self, network: Network, tensors: Mapping[str, Any], *, epsilon: float, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._folded = network.foldable_convolutions()
        self._tensors: dict[str, Any] = {}
        for layer in network.layers:
            if layer.kind.is_affine:
                self._fold(layer, tensors, epsilon)
            elif layer.name not in self._folded:
                self._tensors |= {each.name: tensors[each.name].to(dtype, copy=True) for each in layer.parameters}
        self._layers = Layers(network.layers, {"bn": self._normalise})

    def _fold(self, norm: Layer, tensors: Mapping[str, Any], epsilon: float) -> None:
        """Compute what a batch norm leaves behind."""
        source = norm.inputs[0]
        scale, shift = folded_batch_norm(norm, tensors, self._folded, epsilon, torch.sqrt)
        if source in self._folded:
            self._tensors[f"{source}_weight"] = (tensors[f"{source}_weight"] * _per_channel(scale, 0)).to(self._dtype)
            self._tensors[f"{source}_bias"] = shift.to(self._dtype)
        else:
            self._tensors[f"{norm.name}_scale"] = _per_channel(scale, 1).to(self._dtype)
            self._tensors[f"{norm.name}_shift"] = _per_channel(shift, 1).to(self._dtype)

    def _normalise(self, norm: Layer, _tensors: Mapping[str, Any], values: Any) -> Any:
        if norm.inputs[0] in self._folded:
            return values
        return torch.addcmul(self._tensors[f"{norm.name}_shift"], values, self._tensors[f"{norm.name}_scale"])

    def __call__(self, images: Any) -> Any:
        """Queue inference on images [N, C, H, W] and return float32 logits, shape (batch, classes)."""
        return self._layers(images.to(self._dtype), self._tensors).float()


def _per_channel(values: Any, axis: int) -> Any:
    """Return a vector in the shape in which it multiplies a four-dimensional tensor along an axis."""
    return values.reshape([-1 if each == axis else 1 for each in range(4)])
