"""Files of named tensors: this program's or torchvision's. Nothing in a file is executed."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.errors import UserError
from configs.reading import Unreadable, patiently


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Read a state file of PyTorch that holds nothing but tensors.

    The names of PyTorch's batch norm become this program's, for example ``layer1.0.bn1.weight`` becomes
    ``layer1.0.bn1_gamma``; then torchvision's ResNets, whose tensors have the same order, fit by their order.

    Raises:
        UserError: The file cannot be read, or is not of that format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript's archives, which are refused
            state = patiently(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    except Unreadable:
        raise
    except Exception as error:  # noqa: BLE001 (what PyTorch raises depends on the content)
        # PyTorch's own words have colours, and advise to run what is in the file.
        reason = getattr(error, "strerror", None) or "it is damaged, or holds a program or other objects"
        remedy = "save model.state_dict() by torch.save"
        raise UserError(f"{path}: is not a state file of plain tensors ({reason}); {remedy}") from None
    if not isinstance(state, dict) or not all(isinstance(each, torch.Tensor) for each in state.values()):
        raise UserError(f"{path}: holds more than named tensors; save model.state_dict() by torch.save")
    return {
        _own_name(name, state): np.array(tensor.float().numpy(), order="C")
        for name, tensor in state.items()
        if not name.endswith("num_batches_tracked")
    }


def _own_name(name: str, state: Mapping[str, Any]) -> str:
    layer, _, kind = name.rpartition(".")
    if f"{layer}.running_mean" not in state:
        return name
    names = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_var"}
    return f"{layer}_{names.get(kind, kind)}"
