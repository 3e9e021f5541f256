"""Files of parameters that every engine reads: NumPy's arrays by name, and ONNX, which every engine exports."""

import zipfile
from pathlib import Path

import numpy as np

from configs.errors import UserError


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        # NumPy does not close an archive that is damaged, if it has opened the file itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: is no file of NumPy's arrays ({error}); write one by numpy.savez") from None


def _read_onnx(path: Path) -> dict[str, np.ndarray]:
    import onnx  # noqa: PLC0415 (slow)
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # noqa: PLC0415 (comes with onnx)

    try:
        model = onnx.load(str(path))
    except (DecodeError, OSError) as error:
        raise UserError(f"{path}: is no ONNX file ({error}); export it again") from None
    return {each.name: np.array(onnx.numpy_helper.to_array(each)) for each in model.graph.initializer}


EXCHANGED = {".npz": _read_arrays, ".onnx": _read_onnx}
"""Ending of a file -> function that reads the named arrays of such a file, float32 and in OIHW."""
