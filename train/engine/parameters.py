"""Parameters to start training from: a checkpoint or another file of weights; the classifier may differ.

A file may be of this program or of others: its content says what it is, not its ending.
"""

import logging
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from configs.arguments import printable
from configs.errors import UserError
from configs.load import resolve_path
from configs.reading import is_file, patiently
from configs.schema import Cluster, Recipe
from logs.checkpoints import read
from train.checkpoint import evaluated_weights
from train.engine.mxnet_file import PARAMS, read_mxnet
from train.engine.pytorch_file import LEGACY, bfloat16_as_float32, read_pytorch
from train.networks.arch import Network, network_of
from train.networks.torchvision_names import ANCHORS, torchvision_names

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 3
_COUNT = "num_batches_tracked"

_HEAD_BYTES = 512

_GIVE = "give a .ckpt, .onnx, .safetensors, .npz, .pth or .params file"


def load_parameters(path: Path, network: Network, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights and running statistics to start from: those of a file, for fine-tuning.

    If a tensor of the classifier has another shape in the file, the whole classifier stays as drawn, and the log says
    so.

    Args:
        path: A file of named arrays in OIHW. If its names are neither this program's nor those of torchvision (Gluon's,
            for example), the arrays are taken in their order, which is the order of the layers.
        network: The network that needs parameters.
        drawn: Seeded weights by name.

    Raises:
        UserError: There is no such file, it cannot be read, or it belongs to another network.
    """
    if not is_file(path):
        removed = "repeat the command if the run trains, which removes old checkpoints"
        give = removed if path.suffix == ".ckpt" else _GIVE
        raise UserError(f"model.parameters: no file {path}; {give}; relative paths start in cluster.paths.data")
    last = network.layers[-1]
    classifier = set() if last.is_frozen else {each.name for each in last.parameters}
    wanted, found = network.tensor_shapes, _unwrapped(path, _read(path), (*ANCHORS, next(iter(network.tensor_shapes))))
    names = _names_in(found, network)
    shapes = {name: each.shape for name, each in found.items()}
    differing = [name for name, shape in wanted.items() if shapes.get(names[name]) != shape]
    refused = {names[name]: wanted[name] for name in differing if name not in classifier}
    trunk = [name for ours, name in names.items() if ours not in classifier]
    unexpected = _unexpected(shapes, trunk, set(names.values()))
    if refused or unexpected:
        problems = [
            _some([f"{name} {shapes.get(name, 'missing')} (wanted {shape})" for name, shape in refused.items()])
        ]
        problems.append("unexpected: " * bool(unexpected) + _some([f"{name} {shapes[name]}" for name in unexpected]))
        told = "; ".join(each for each in problems if each)
        raise UserError(f"{path}: not the parameters of {network.name}: {told}; only the classifier may differ")
    new = sorted(classifier) if differing else []
    if whole := [names[name] for name in wanted if name not in new and found[names[name]].dtype.kind in "iub"]:
        raise UserError(
            f"{path}: holds whole numbers or 8-bit floats: {_some(whole)}; give the weights before they were quantised"
        )
    taken = {name: found[names[name]].astype(np.float32) for name in wanted if name not in new}
    if bad := [names[name] for name, each in taken.items() if not np.isfinite(each).all()]:
        raise UserError(f"{path}: holds NaN or infinities: {_some(bad)}; give weights of a run that did not diverge")
    if bad := [names[name] for name, each in taken.items() if name.endswith("_moving_var") and (each < 0).any()]:
        raise UserError(f"{path}: holds negative variances: {_some(bad)}; write the file again")
    why = "has another shape" if any(names[name] in found for name in new) else "is not in it"
    told = f"; the classifier {why} and is re-initialised: {', '.join(new)}" if new else ""
    frozen = f", {len(network.constants)} of them frozen" if network.constants else ""
    logger.info("weights from %s: %d of %d tensors%s%s", path, len(wanted) - len(new), len(wanted), frozen, told)
    return dict(drawn) | taken


def require_parameters(recipe: Recipe, cluster: Cluster) -> None:
    """Raise UserError if the file of ``model.parameters`` is here and no run can begin with it."""
    path = resolve_path(cluster.paths.data) / (recipe.model.parameters or "")
    if recipe.model.parameters is not None and cluster.rehearsal is None and is_file(path):
        load_parameters(path, network_of(recipe.model), {})


def _unwrapped(path: Path, found: Mapping[str, np.ndarray], anchors: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the real arrays of a file, but counts of batches, without what wraps a network, by first tensors' names.

    That is a prefix such as ``module.`` or Lightning's ``model.``, beside which there may be tensors of a loss, and the
    ``_orig_mod.`` of what `torch.compile` has compiled.

    Raises:
        UserError: The file holds several networks.
    """
    # No weight is a text, a complex number or a date.
    weights = {
        name.replace("_orig_mod.", ""): each
        for name, each in found.items()
        if not name.endswith(_COUNT) and np.can_cast(each.dtype, np.float64, "same_kind")
    }
    prefixes = [name.removesuffix(each) for each in anchors for name in weights if f".{name}".endswith(f".{each}")]
    if len(prefixes) > 1:
        several = printable(", ".join(each or "without a prefix" for each in prefixes))
        raise UserError(f"{path}: holds several networks ({several}); save the state_dict() of one of them")
    prefix = prefixes[0] if prefixes else ""
    return {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}


def _names_in(found: Mapping[str, np.ndarray], network: Network) -> dict[str, str]:
    """Return this program's name -> a file's, torchvision's if the file has them, or else by order."""
    wanted = list(network.tensor_shapes)
    if not found.keys().isdisjoint(ANCHORS) and (theirs := torchvision_names(network)):
        return theirs
    is_alike = [_kind(name, found) for name in found] == [name.rpartition("_")[2] for name in wanted]
    return dict(zip(wanted, found if is_alike and not set(wanted) & set(found) else wanted, strict=True))


def _kind(name: str, found: Mapping[str, np.ndarray]) -> str:
    """Return what a tensor is, in the words of this program, where PyTorch's batch norm has the words of a layer."""
    layer, _, kind = name.rpartition(".")
    words = {"weight": "gamma", "bias": "beta"} if f"{layer}.running_mean" in found else {}
    return words.get(kind, kind).rpartition("_")[2]


def _unexpected(shapes: Mapping[str, Any], trunk: Sequence[str], known: AbstractSet[str]) -> list[str]:
    """Return the names that a part of the trunk has in the file alone: they are those of a deeper network.

    Other tensors belong to a classifier, or to what the file's program needs besides. If no name of the trunk is in the
    file, all names are unexpected.
    """
    parts = {_part(name) for name in trunk}
    is_foreign = shapes.keys().isdisjoint(trunk)
    return [name for name in shapes if name not in known and (is_foreign or _part(name) in parts)]


def _part(name: str) -> str:
    return re.split(r"[._]", name)[0]


def _some(differences: Sequence[str]) -> str:
    more = f" and {len(differences) - _NAMED_AT_MOST} more" if len(differences) > _NAMED_AT_MOST else ""
    return printable(", ".join(differences[:_NAMED_AT_MOST]) + more)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Read a file of weights, by its content, not by its ending."""
    try:
        return patiently(path, lambda: _content(path))
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (what is raised depends on the content)
        reason = f"{type(error).__name__}: {printable(str(error))}"
        remedy = "copy or download it again, or write it anew"
        raise UserError(f"{path}: is damaged, cut short or of another format ({reason}); {remedy}") from None


def _content(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not any(head) or not any(byte < ord(" ") and byte not in b"\t\r\n" for byte in head):
        kind = "a text, for example a page that tells of an error" if any(head) else "empty"
        raise UserError(f"{path}: is {kind}, not a file of weights; copy or download it again")
    if head.startswith(LEGACY):
        return read_pytorch(path)
    if head.startswith(PARAMS):
        return read_mxnet(path)
    if head[8:9] == b"{":
        return _read_safetensors(path)
    if head.startswith(b"PK"):
        return _read_archive(path)
    if path.suffix == ".onnx":  # which has no mark of its own
        return _read_onnx(path)
    raise UserError(f"{path}: is no file of weights that this program knows; {_GIVE}")


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    if zipfile.is_zipfile(path):  # Of a checkpoint that is none, its reader says more.
        with zipfile.ZipFile(path) as archive:
            if not any(name.endswith(".npy") for name in archive.namelist()):
                return read_pytorch(path)
    if path.suffix == ".ckpt":
        return evaluated_weights(read(path))
    # NumPy does not close an archive that is damaged, if it has opened the file itself.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_onnx(path: Path) -> dict[str, np.ndarray]:
    import onnx  # noqa: PLC0415 (slow)

    model = onnx.load(str(path))
    return {each.name: np.array(onnx.numpy_helper.to_array(each)) for each in model.graph.initializer}


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import safetensors  # noqa: PLC0415 (few runs need it)

    views: Any = safetensors.deserialize
    return {name: _array(**view) for name, view in views(path.read_bytes())}


def _array(dtype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """Return a tensor of a safetensors file; of a type that NumPy lacks, its bits as whole numbers."""
    raw = bfloat16_as_float32(data) if dtype == "BF16" else data
    kind = "f" if dtype in ("F64", "F32", "F16", "BF16") else "u"
    return np.frombuffer(raw, f"<{kind}{len(raw) // (math.prod(shape) or 1) or 1}").reshape(shape)
