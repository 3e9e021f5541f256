"""The verbs of MXNet's engine on a CPU, and the operators of its profiler's files."""

import ctypes
from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.load import load_cluster
from tests.engines import ALONE
from train.engine.mxnet.engine import MxnetEngine, read_operators
from train.engine.protocol import Operator


def _opened(launcher: str = "none", local_rank: int = 0, **settings: str) -> MxnetEngine:
    """Open the engine of a rank of four on its node."""
    words = [f"cluster.{key}={value}" for key, value in {"engine.name": "mxnet", **settings}.items()]
    return MxnetEngine(load_cluster("laptop", words), replace(ALONE, local_rank=local_rank, launcher=launcher))


def test_a_rank_takes_the_gpu_of_its_number_on_the_node_and_a_device_of_a_process_its_own() -> None:
    devices = {"communication.kind": "devices"}
    assert _opened("devices", 2, **devices).context == mx.cpu(2)
    assert _opened("Horovod", 2, **devices).context == mx.cpu(0)
    assert _opened("Horovod", 1, device="gpu").context == mx.gpu(1)


def test_operators_of_a_profile_are_ordered_and_reductions_are_told_apart() -> None:
    def event(kind: str, name: str, time: int) -> dict[str, Any]:
        return {"ph": kind, "name": name, "ts": time}

    rows = [("B", "horovod_sum", 30), ("E", "horovod_sum", 90), ("B", "conv", 10), ("E", "conv", 40)]
    rows += [("B", "DeleteVariable", 1), ("E", "DeleteVariable", 2), ("b", "conv", 10), ("e", "conv", 40), ("M", "", 0)]
    assert read_operators({"traceEvents": [event(*row) for row in rows]}) == [
        Operator("conv", 10, 40, is_communication=False),
        Operator("horovod_sum", 30, 90, is_communication=True),
    ]


def test_a_device_of_a_process_makes_its_arrays_on_itself_also_those_of_dali() -> None:
    tensors = pytest.importorskip("nvidia.dali.tensors")
    engine, own = _opened("devices", 2, **{"communication.kind": "devices"}), mx.cpu(2)
    made = engine.from_host(np.arange(3, dtype=np.float32))
    batch = engine.from_dali(tensors.TensorCPU(np.ones((2, 1, 1), np.float32), "HWC"), is_on_host=True)
    arrays = [made, batch, engine.zeros((3,)), engine.take(made, np.array([2, 0])), engine.copy(made)]
    arrays += [engine.flag(made, is_set=True), engine.first_element(made)]
    assert [array.context for array in arrays] == [own] * 7


@pytest.mark.parametrize("number_type", ["float16", "float32"])
def test_a_tensor_that_dali_holds_on_a_gpu_is_copied_there_with_its_type(number_type: str) -> None:
    values = np.arange(6, dtype=number_type).reshape(2, 3)

    class OnGpu:
        """A tensor of DALI's interface for GPUs, in the memory of the host."""

        __cuda_array_interface__ = values.__array_interface__

        def shape(self) -> list[int]:
            return [2, 3]

        def copy_to_external(self, pointer: ctypes.c_void_p) -> None:
            ctypes.memmove(pointer, values.ctypes.data, values.nbytes)

    engine = _opened()
    engine.context, engine._host = mx.cpu(3), mx.cpu(0)
    array = engine.from_dali(OnGpu(), is_on_host=False)
    assert (array.context, array.dtype) == (mx.cpu(3), np.dtype(number_type))
    np.testing.assert_array_equal(array.asnumpy(), values)
