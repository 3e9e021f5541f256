"""Writing a trained network as PyTorch's state and program, and loading each format again."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from train.engine.protocol import Predict, TrainableNetwork
from train.engine.pytorch_file import read_pytorch
from train.engine.torch.folding import FoldedInference
from train.engine.torch.layers import Layers
from train.networks.arch import Network
from train.networks.layer import Layer
from train.networks.torchvision_names import renamed


def export_formats(network: TrainableNetwork, prefix: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function that predicts with the network loaded from its files.

    Args:
        network: A float32 network in NCHW on the CPU.
        prefix: Beginning of the paths of the files; its folder exists.
        names: This program's name -> that in the state file, for each tensor.

    Yields:
        First ``PyTorch state`` (tensors by name), then ``PyTorch program`` (`torch.export`).
    """
    table, epsilon = network.network, network.model.bn_epsilon
    state = f"{prefix}.pt"
    arrays = {**network.read_weights(), **network.read_statistics()}
    tensors = {name: torch.from_numpy(np.array(values, order="C")) for name, values in renamed(arrays, names).items()}
    torch.save(tensors, state)
    saved = read_pytorch(Path(state))
    loaded = {name: torch.from_numpy(saved[names[name]]) for name in arrays}
    restored = FoldedInference(table, loaded, epsilon=epsilon, dtype=torch.float32)
    yield "PyTorch state", _without_graph(restored)

    program = f"{prefix}.pt2"
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    _write_program(_Inference(table, tensors, epsilon), network.image_shape, program)
    yield "PyTorch program", _without_graph(torch.export.load(program).module())


def _without_graph(predict: Callable[[Any], Any]) -> Predict:
    def logits(images: Any) -> np.ndarray:
        with torch.inference_mode():
            values: np.ndarray = predict(images).numpy()
        return values

    return logits


class _Inference(nn.Module):  # type: ignore[misc]
    """The network in inference, with batch norm as in training, for `torch.export`."""

    def __init__(self, table: Network, tensors: Mapping[str, Any], epsilon: float) -> None:
        super().__init__()
        self._epsilon, self._names = epsilon, tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        self._layers = Layers(table.layers, {"bn": self._normalise})

    def _normalise(self, layer: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
        gamma, beta, mean, variance = (tensors[name] for name in layer.tensor_shapes)
        return functional.batch_norm(values, mean, variance, gamma, beta, eps=self._epsilon)

    def forward(self, images: Any) -> Any:
        return self._layers(images, {name: getattr(self, name) for name in self._names})


def _write_program(module: nn.Module, image_shape: tuple[int, ...], path: str) -> None:
    """Write a module as a program for any number of images."""
    # From a batch of one, the exporter would conclude that a batch is always one.
    images = torch.zeros((2, *image_shape))
    batch = torch.export.Dim("batch", min=1)
    torch.export.save(torch.export.export(module, (images,), dynamic_shapes=({0: batch},)), path)
