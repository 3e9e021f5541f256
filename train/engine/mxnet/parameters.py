"""Parameters to start from, out of a ``.params`` file of ours or of Gluon's model zoo; the classifier may differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from configs.errors import UserError
from train.networks.arch import Network

__all__ = ["load_parameters"]

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


def load_parameters(path: Path, network: Network, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the weights to begin with, and the running statistics: those of a file, for fine-tuning.

    The classifier's tensors are taken where their shapes are the same; else they stay as they were drawn, and the log
    says so.

    Args:
        path: A file of named arrays in OIHW. With our names, ``arg:`` and ``aux:`` may stand before them; with other
            names, Gluon's, each array is taken for what stands at its place in our table.
        network: Whose parameters are wanted.
        drawn: Seeded weights by name.

    Raises:
        UserError: No such file, or one of another network.
    """
    classifier = {each.name for each in network.layers[-1].parameters}
    wanted = _wanted(network)
    found = _named_as(wanted, _read(path))
    differing = [name for name, shape in wanted.items() if name not in found or found[name].shape != shape]
    refused = [name for name in differing if name not in classifier]
    if refused:
        raise UserError(_explain(path, network.name, refused, {name: wanted[name] for name in refused}, found))
    kept = sorted(set(differing))
    new = f"; newly initialised: {', '.join(kept)}" if kept else ""
    logger.info("parameters from %s: %d of %d tensors%s", path, len(wanted) - len(kept), len(wanted), new)
    return dict(drawn) | {name: found[name].asnumpy().astype(np.float32) for name in wanted if name not in kept}


def _wanted(network: Network) -> dict[str, tuple[int, ...]]:
    """Give name and shape of each tensor in the order of the layers, which is Gluon's too."""
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in network.layers:
        wanted |= {each.name: each.shape for each in layer.parameters}
        if layer.kind == "bn":
            wanted |= {f"{layer.name}_moving_{moment}": (layer.out_channels,) for moment in ("mean", "var")}
    return wanted


def _named_as(wanted: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Give arrays of foreign names ours, where number and kinds of the tensors are those of our table."""
    is_alike = len(found) == len(wanted) and all(
        theirs.endswith(ours.rpartition("_")[2]) for theirs, ours in zip(found, wanted, strict=True)
    )
    return dict(zip(wanted, found.values(), strict=True)) if is_alike and not set(wanted) & set(found) else found


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"model.parameters: no file {path}; give a .params file, relative to cluster.paths.data")
    try:
        arrays = mx.nd.load(str(path))
    except mx.base.MXNetError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"{path}: is no file of MXNet parameters ({reason}); export it again") from None
    if not isinstance(arrays, dict):
        raise UserError(f"{path}: holds arrays without names; give a file written by mx.nd.save of a dictionary")
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}


def _explain(
    path: Path, name: str, refused: list[str], wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Any]
) -> str:
    shapes = {each: found[each].shape if each in found else "missing" for each in refused[:_NAMED_AT_MOST]}
    some = ", ".join(f"{each} {shape} (wanted {wanted[each]})" for each, shape in shapes.items())
    more = f" and {len(refused) - _NAMED_AT_MOST} more" if len(refused) > _NAMED_AT_MOST else ""
    return f"{path}: not the parameters of {name}: {some}{more}; only the classifier may differ"
