"""Files of weights, of this program or of others, as named arrays. The content says what a file is, not its ending."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from configs.errors import UserError
from configs.reading import Unreadable, patiently
from logs.checkpoints import read
from train.checkpoint import evaluated_weights
from train.engine.pytorch_file import LEGACY, read_pytorch

_HEAD_BYTES = 512
_PARAMS = bytes.fromhex("1201000000000000")
"""Beginning of a file that MXNet has written."""

_GIVE = "give a .ckpt, .onnx, .safetensors, .npz, .pth or .params file"

Read = Callable[[Path], dict[str, np.ndarray]]


def read_weights(path: Path, read_own: Read) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names in it, in OIHW.

    Args:
        path: A file.
        read_own: Reads files of MXNet, see `train.engine.protocol.Engine.read_parameters`.

    Raises:
        UserError: The file cannot be read, or has no weights.
    """
    return _reader(path, read_own)(path)


def _reader(path: Path, read_own: Read) -> Read:
    """Return what reads a file, by its content."""
    head = patiently(path, lambda: _head(path))
    if not any(head) or not any(byte < ord(" ") and byte not in b"\t\r\n" for byte in head):
        kind = "a text, for example a page that tells of an error" if any(head) else "empty"
        raise UserError(f"{path}: is {kind}, not a file of weights; copy or download it again")
    if head.startswith(LEGACY):
        return read_pytorch
    if head.startswith(_PARAMS):
        return read_own
    if head[8:9] == b"{":
        return _read_safetensors
    if head.startswith(b"PK"):
        return _archive_reader(path)
    if path.suffix == ".onnx":  # which has no mark of its own
        return _read_onnx
    raise UserError(f"{path}: is no file of weights that this program knows; {_GIVE}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _archive_reader(path: Path) -> Read:
    try:
        with patiently(path, lambda: zipfile.ZipFile(path)) as archive:
            members = archive.namelist()
    except zipfile.BadZipFile:
        if path.suffix != ".ckpt":
            raise UserError(f"{path}: is cut short or damaged; copy or download it again") from None
        return _read_checkpoint  # which says more
    if not any(name.endswith(".npy") for name in members):
        return read_pytorch
    return _read_checkpoint if path.suffix == ".ckpt" else _read_arrays


def _read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    return evaluated_weights(read(path))


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


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError  # noqa: PLC0415 (few runs need it)
    from safetensors.numpy import load_file  # noqa: PLC0415

    try:
        arrays: dict[str, np.ndarray] = patiently(path, lambda: load_file(path))
    except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the last two: types that NumPy lacks
        raise UserError(f"{path}: is not a file of safetensors in float32 ({error}); export it again") from None
    return arrays
