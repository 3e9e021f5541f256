"""Parameters to start training from: a checkpoint or another file of weights; the classifier may differ."""

import logging
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.reading import Unreadable, is_file, patiently
from logs.checkpoints import read
from train.checkpoint import evaluated_weights
from train.networks.arch import Network

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        # NumPy does not close an archive that is damaged, if it has opened the file itself.
        with patiently(path, lambda: path.open("rb")) as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Unreadable:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: is not a file of NumPy arrays ({error}); write one by numpy.savez") from None


def _read_onnx(path: Path) -> dict[str, np.ndarray]:
    import onnx  # noqa: PLC0415 (slow)
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # noqa: PLC0415 (comes with onnx)

    try:
        model = patiently(path, lambda: onnx.load(str(path)))
    except (DecodeError, OSError) as error:
        raise UserError(f"{path}: is not an ONNX file ({error}); export it again") from None
    return {each.name: np.array(onnx.numpy_helper.to_array(each)) for each in model.graph.initializer}


def _read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    return evaluated_weights(read(path))


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError  # noqa: PLC0415 (few runs need it)
    from safetensors.numpy import load_file  # noqa: PLC0415

    try:
        arrays: dict[str, np.ndarray] = patiently(path, lambda: load_file(path))
    except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the last two: types that NumPy lacks
        raise UserError(f"{path}: is not a file of safetensors in float32 ({error}); export it again") from None
    return arrays


_READERS = {
    ".npz": _read_arrays, ".onnx": _read_onnx, ".ckpt": _read_checkpoint, ".safetensors": _read_safetensors,
}  # fmt: skip
"""Ending of a file -> function that reads the named arrays of such a file, float32 and in OIHW."""


def load_parameters(
    path: Path,
    network: Network,
    drawn: Mapping[str, np.ndarray],
    read_parameters: Callable[[Path], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return the weights and running statistics to start from: those of a file, for fine-tuning.

    If a tensor of the classifier has another shape in the file, the whole classifier stays as drawn, and the log says
    so.

    Args:
        path: A file of named arrays in OIHW. If its names are not this program's (Gluon's, for example), the arrays
            are taken in their order, which is the order of the layers.
        network: The network that needs parameters.
        drawn: Seeded weights by name.
        read_parameters: Reads files of the framework's own format, see `train.engine.protocol.Engine.read_parameters`.

    Raises:
        UserError: There is no such file, it cannot be read, or it belongs to another network.
    """
    if not is_file(path):
        raise UserError(
            f"model.parameters: no file {path}; give a .ckpt, .onnx, .safetensors or .npz file, a .params file under "
            "MXNet, or a .pt file under PyTorch; relative paths start in cluster.paths.data"
        )
    last = network.layers[-1]
    classifier = set() if last.is_frozen else {each.name for each in last.parameters}
    wanted = network.tensor_shapes
    found = _named_as(wanted, _READERS.get(path.suffix, read_parameters)(path))
    differing = [name for name, shape in wanted.items() if name not in found or found[name].shape != shape]
    refused = [name for name in differing if name not in classifier]
    if refused:
        raise UserError(_explain(path, network.name, refused, {name: wanted[name] for name in refused}, found))
    new = sorted(classifier) if differing else []
    told = f"; the classifier has another shape and is re-initialised: {', '.join(new)}" if new else ""
    frozen = f", {len(network.constants)} of them frozen" if network.constants else ""
    logger.info("weights from %s: %d of %d tensors%s%s", path, len(wanted) - len(new), len(wanted), frozen, told)
    return dict(drawn) | {name: found[name].astype(np.float32) for name in wanted if name not in new}


def _named_as(wanted: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Rename arrays with foreign names by their order, if number and kinds of tensors fit the network."""
    is_alike = len(found) == len(wanted) and all(
        theirs.endswith(ours.rpartition("_")[2]) for theirs, ours in zip(found, wanted, strict=True)
    )
    return dict(zip(wanted, found.values(), strict=True)) if is_alike and not set(wanted) & set(found) else found


def _explain(
    path: Path, name: str, refused: list[str], wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Any]
) -> str:
    shapes = {each: found[each].shape if each in found else "missing" for each in refused[:_NAMED_AT_MOST]}
    some = ", ".join(f"{each} {shape} (wanted {wanted[each]})" for each, shape in shapes.items())
    more = f" and {len(refused) - _NAMED_AT_MOST} more" if len(refused) > _NAMED_AT_MOST else ""
    return f"{path}: not the parameters of {name}: {some}{more}; only the classifier may differ"
