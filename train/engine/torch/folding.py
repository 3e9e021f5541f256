"""Inference without batch norm: running statistics, gamma and beta become part of the convolutions.

`train.engine.formulas.folded_batch_norm` has the formula.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from train.engine.formulas import folded_batch_norm, norm_vectors
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
            if not layer.kind.is_affine and layer.name not in self._folded:
                self._tensors |= {each.name: tensors[each.name].to(dtype, copy=True) for each in layer.parameters}
        if norms := [layer for layer in network.layers if layer.kind.is_affine]:
            self._fold(norms, tensors, epsilon)
        self._layers = Layers(network.layers, {"bn": self._normalise})

    def _fold(self, norms: Sequence[Layer], tensors: Mapping[str, Any], epsilon: float) -> None:
        """Compute what the batch norms leave behind: one launch an operator for all of them, and one for a weight."""
        columns = zip(*(norm_vectors(each, tensors, self._folded) for each in norms), strict=True)
        mean, variance, gamma, beta = map(torch.cat, columns)
        scales, shifts = folded_batch_norm(mean, variance, gamma, beta, epsilon, torch.sqrt)
        widths = [each.out_channels for each in norms]
        pieces = zip(norms, scales.split(widths), shifts.to(self._dtype).split(widths), strict=True)
        for norm, scale, shift in pieces:
            source = norm.inputs[0]
            if source in self._folded:
                weight = tensors[f"{source}_weight"]
                folded = torch.empty_like(weight, dtype=self._dtype)
                self._tensors[f"{source}_weight"] = torch.mul(weight, _per_channel(scale, 0), out=folded)
                self._tensors[f"{source}_bias"] = shift
            else:
                self._tensors[f"{norm.name}_scale"] = _per_channel(scale, 1).to(self._dtype)
                self._tensors[f"{norm.name}_shift"] = _per_channel(shift, 1)

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
