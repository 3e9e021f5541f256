"""Files of named tensors: this program's or torchvision's. Nothing in a file is executed."""

import pickle
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
        state = patiently(path, lambda: torch.load(path, map_location="cpu", weights_only=True))
    except Unreadable:
        raise
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        raise UserError(f"{path}: is not a state file of plain tensors ({reason}); save one again") from None
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
