"""Files of parameters that every engine reads; `torch/test_crossing.py` reads those that each engine exports."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from train.engine.exchange import EXCHANGED


def test_arrays_of_numpy_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, a_weight=np.ones(3, np.float32))
    assert {name: values.tolist() for name, values in EXCHANGED[".npz"](path).items()} == {"a_weight": [1, 1, 1]}


@pytest.mark.parametrize(
    ("ending", "content"),
    [(".npz", b""), *product((".npz", ".onnx"), (b"no such file", pickle.dumps({"a": 1}), b"PK\x03\x04 cut off"))],
)
def test_another_file_is_refused_in_one_line(ending: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is no (file of NumPy.s arrays|ONNX file)") as caught:
        EXCHANGED[ending](path)
    assert "\n" not in str(caught.value)
