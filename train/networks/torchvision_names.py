"""The names of a network's tensors in torchvision and, of ResNets, in timm, which has those of torchvision. Pure.

*Sources*: torchvision/models/resnet.py and mobilenetv2.py; timm/models/resnet.py, for the deep stem and the pooled
shortcut of ResNet-D.
"""

import re
from collections.abc import Mapping

import numpy as np

from train.networks.arch import Network

ANCHORS = ("layer1.0.conv1.weight", "features.0.0.weight")
"""A name that every ResNet has, and one of MobileNet v2; they end no other name."""

_BLOCK = re.compile(r"stage(\d)_block(\d+)_(conv(\d)|projection)(_bn)?")
_OUTSIDE = {
    "stem": "conv1", "stem_bn": "bn1", "classifier": "fc",
    "stem_conv1": "conv1.0", "stem_conv1_bn": "conv1.1", "stem_conv2": "conv1.3", "stem_conv2_bn": "conv1.4",
    "stem_conv3": "conv1.6", "stem_conv3_bn": "bn1",
}  # fmt: skip
"""Layer outside the blocks -> module."""

_INVERTED = re.compile(r"block(\d+)_(expansion|depthwise|projection)(_bn)?")
_OUTSIDE_MOBILENET = {
    "stem": "features.0.0", "stem_bn": "features.0.1", "head": "features.18.0", "head_bn": "features.18.1",
    "classifier": "classifier.1",
}  # fmt: skip

_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_var": "running_var"}


def torchvision_names(network: Network) -> dict[str, str]:
    """Return this program's name -> torchvision's for each tensor; empty if a layer has no counterpart there."""
    is_pooled = any(layer.name.endswith("_projection_pool") for layer in network.layers)
    is_mobilenet = network.name == "mobilenet_v2"
    names = {}
    for layer in network.layers:
        for tensor in layer.tensor_shapes:
            module = _in_mobilenet(layer.name) if is_mobilenet else _in_resnet(layer.name, is_pooled=is_pooled)
            if module is None:
                return {}
            kind = tensor.removeprefix(f"{layer.name}_")
            names[tensor] = f"{module}.{_NORM.get(kind, kind)}"
    return names if {*ANCHORS} & {*names.values()} else {}


def _in_resnet(layer: str, *, is_pooled: bool) -> str | None:
    if match := _BLOCK.fullmatch(layer):
        stage, block, _, convolution, is_norm = match.groups()
        kind = "bn" if is_norm else "conv"
        # timm's shortcut begins with its pool, or with an identity where nothing is to be pooled.
        part = f"{kind}{convolution}" if convolution else f"downsample.{bool(is_norm) + is_pooled}"
        return f"layer{stage}.{int(block) - 1}.{part}"
    return _OUTSIDE.get(layer)


def _in_mobilenet(layer: str) -> str | None:
    if match := _INVERTED.fullmatch(layer):
        block, part, is_norm = match.groups()
        # The first block has no expansion. All convolutions but the last stand in a module with norm and activation.
        place = ["expansion", "depthwise", "projection"][int(block) == 1 :].index(part)
        number = f"{place + bool(is_norm)}" if part == "projection" else f"{place}.{int(bool(is_norm))}"
        return f"features.{block}.conv.{number}"
    return _OUTSIDE_MOBILENET.get(layer)


def renamed(tensors: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return tensors by other names; with torchvision's, all that ``load_state_dict`` takes.

    Args:
        tensors: By this program's names.
        names: This program's name -> another one. PyTorch's batch norms also count batches, which inference ignores.
    """
    state = {names[name]: values for name, values in tensors.items()}
    norms = [name.removesuffix("running_var") for name in state if name.endswith("running_var")]
    return state | {f"{norm}num_batches_tracked": np.zeros((), np.int64) for norm in norms}
