"""Files of MXNet's read without it, against MXNet's own reader; `test_parameters` has a network's."""

import struct
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from configs.errors import UserError
from train.engine.mxnet_file import read_mxnet


def _older(mark: int | None) -> bytes:
    """Return the file of an array of 2 x 3, as MXNet 0.12 (with its mark) or an earlier one has written it."""
    axes = struct.pack("<III", 2, 2, 3) if mark is None else struct.pack("<IIqq", mark, 2, 2, 3)
    array = axes + struct.pack("<iii6f", 1, 0, 0, *range(6))
    return struct.pack("<QQQ", 0x112, 0, 1) + array + struct.pack("<QQ5s", 1, 5, b"arg:w")


def test_arrays_of_every_type_and_version_are_those_that_mxnet_reads(tmp_path: Path) -> None:
    kinds = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64")
    files = [tmp_path / name for name in ("now", "0.12", "earlier")]
    mx.nd.save(str(files[0]), {each: mx.nd.array([[1, 2, 3], [4, 5, 6]], dtype=each) for each in kinds})
    files[1].write_bytes(_older(0xF993FAC8))
    files[2].write_bytes(_older(None))
    for file in files:
        theirs = {name.removeprefix("arg:"): each.asnumpy() for name, each in mx.nd.load(str(file)).items()}
        ours = read_mxnet(file)
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            assert ours[name].dtype == values.dtype
            np.testing.assert_array_equal(ours[name], values)


def test_a_file_that_holds_no_named_dense_arrays_or_not_all_of_them_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.params"
    mx.nd.save(str(path), [mx.nd.array([1])])
    with pytest.raises(UserError, match="holds arrays without names; give a file"):
        read_mxnet(path)
    mx.nd.save(str(path), {"w": mx.nd.array([[0, 1]]).tostype("csr")})
    with pytest.raises(ValueError, match="sparse"):
        read_mxnet(path)
    whole = _older(None)
    for length in range(8, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"buffer|offset"):
            read_mxnet(path)
