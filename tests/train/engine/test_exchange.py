"""Files of parameters that every engine reads; `torch/test_crossing.py` reads those that each engine exports."""

import pickle
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from configs.errors import UserError
from train.engine.exchange import EXCHANGED


def test_arrays_of_numpy_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, a_weight=np.ones(3, np.float32))
    assert {name: values.tolist() for name, values in EXCHANGED[".npz"](path).items()} == {"a_weight": [1, 1, 1]}


def test_the_constants_of_an_onnx_graph_are_its_arrays_and_may_be_written(tmp_path: Path) -> None:
    given = {"a_weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a_bias": np.full(2, 7, np.float32)}
    constants = [onnx.numpy_helper.from_array(values, name) for name, values in given.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "own", [], [], constants)), tmp_path / "a.onnx")
    read = EXCHANGED[".onnx"](tmp_path / "a.onnx")
    assert list(read) == list(given)
    for name, values in read.items():
        np.testing.assert_array_equal(values, given[name])
        assert values.flags.writeable


@pytest.mark.parametrize(
    ("ending", "content"),
    [(".npz", b""), *product((".npz", ".onnx"), (b"no such file", pickle.dumps({"a": 1}), b"PK\x03\x04 cut off"))],
)
def test_another_file_is_refused_in_one_line(ending: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is no (file of NumPy.s arrays|ONNX file)") as caught:
        EXCHANGED[ending](path)
    assert str(path) not in [each.path for each in psutil.Process().open_files()]
    assert "\n" not in str(caught.value)
