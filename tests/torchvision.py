"""The names that torchvision gives to the tensors of a small ResNet, written by hand. Imports nothing of ours."""

from collections.abc import Mapping
from itertools import product

import numpy as np

_CONVOLUTIONS = [*product((1, 2, 3), (1, 2))]
MODULES = {
    "stem": "conv1", "stem_bn": "bn1", "classifier": "fc",
    **{f"stage{stage}_block1_conv{number}": f"layer{stage}.0.conv{number}" for stage, number in _CONVOLUTIONS},
    **{f"stage{stage}_block1_conv{number}_bn": f"layer{stage}.0.bn{number}" for stage, number in _CONVOLUTIONS},
    **{f"stage{stage}_block1_projection": f"layer{stage}.0.downsample.0" for stage in (2, 3)},
    **{f"stage{stage}_block1_projection_bn": f"layer{stage}.0.downsample.1" for stage in (2, 3)},
}  # fmt: skip
"""Layer of resnet8 -> module of a ResNet with one block of two convolutions in each of three stages."""

_KINDS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_var": "running_var"}


def of_pytorch(arrays: Mapping[str, np.ndarray], modules: Mapping[str, str] = MODULES) -> dict[str, np.ndarray]:
    """Name the tensors of resnet8 as PyTorch does, and add the counts that its batch norms have.

    Args:
        arrays: By this program's names.
        modules: Layer -> module.
    """
    named = {}
    for name, values in arrays.items():
        layer = max((each for each in modules if name.startswith(f"{each}_")), key=len)
        kind = name.removeprefix(f"{layer}_")
        named[f"{modules[layer]}.{_KINDS.get(kind, kind)}"] = values
        if kind == "moving_var":
            named[f"{modules[layer]}.num_batches_tracked"] = np.array(7, np.int64)
    return named
