"""The verbs of MXNet's engine on a CPU, and the operators of its profiler's files."""

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mxnet as mx
import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_cluster
from configs.optimizers import Adam, HyperParameters, Lars, OptimizerBlock, Sgd
from tests.engines import ALONE
from train.engine.mxnet.engine import MxnetEngine, read_operators
from train.engine.protocol import Operator, Trainee
from train.networks.arch import Parameter


@pytest.fixture(scope="module")
def engine() -> MxnetEngine:
    return MxnetEngine(load_cluster("laptop", ["cluster.engine.name=mxnet", "cluster.communication.kind=none",
                                               "cluster.ranks_per_node=1"]), ALONE)  # fmt: skip


def test_rows_products_and_flags_are_those_of_numpy(engine: MxnetEngine) -> None:
    left, right = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    given = engine.from_host(left)
    np.testing.assert_array_equal(engine.to_host(engine.product(given, engine.from_host(right))), left @ right.T)
    np.testing.assert_array_equal(engine.to_host(engine.take(given, np.array([1, 0, 1]))), left[[1, 0, 1]])
    half = engine.from_host(left.astype(np.float16))
    for is_set in (True, False):
        flag = engine.to_host(engine.flag(half, is_set=is_set))
        assert (flag.dtype, flag.tolist()) == (np.float16, [[float(is_set)] * 3] * 2)
    assert engine.to_float32(given) is given
    assert engine.to_host(engine.to_float32(half)).dtype == np.float32
    assert engine.zeros([2]).dtype == np.float32


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(
    "config",
    [
        Lars(name="lars", weight_decay=0.1, trust_coefficient=0.5),
        Sgd(name="sgd", weight_decay=0.1),
        Adam(name="adam", epsilon=0.5),
    ],
)
def test_each_optimizer_takes_the_mean_of_what_the_ranks_have_summed(
    engine: MxnetEngine, config: OptimizerBlock, precision: str
) -> None:
    def trained(gradient: list[float], rescale: float) -> list[float]:
        masters = [mx.nd.array([3.0, 1.0])]
        network = SimpleNamespace(
            parameters=(Parameter("a", "weight", (2,)),),
            weights=[masters[0].astype(precision, copy=False)],
            masters=masters,
            gradients=[mx.nd.array(gradient, dtype=precision)],
        )
        optimizer = engine.build_optimizer(config, cast(Trainee, network), rescale=rescale, arrivals=[0])
        optimizer.update(HyperParameters(0.5, 0.9, 0.1, step=0))
        values: list[float] = masters[0].asnumpy().tolist()
        return values

    assert trained([4.0, 8.0], 0.25) == pytest.approx(trained([1.0, 2.0], 1.0))
    assert trained([4.0, 8.0], 0.25) != pytest.approx(trained([4.0, 8.0], 1.0), rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_gradients_that_arrive_first_are_updated_without_waiting_for_the_others(
    engine: MxnetEngine, precision: str
) -> None:
    masters = [mx.nd.array([3.0]), mx.nd.array([1.0])]
    network = SimpleNamespace(
        parameters=(Parameter("a", "weight", (1,)), Parameter("b", "weight", (1,))),
        weights=[master.astype(precision, copy=False) for master in masters],
        masters=masters,
        gradients=[mx.nd.array([1.0], dtype=precision) for _ in masters],
    )
    config, groups = Sgd(name="sgd", weight_decay=0.0), {}
    for arrivals in ([1, 0], [0, 0]):
        optimizer = engine.build_optimizer(config, cast(Trainee, network), rescale=1.0, arrivals=arrivals)
        groups[tuple(arrivals)] = len(optimizer._groups if precision == "float32" else optimizer._chunks)  # type: ignore[attr-defined]
    assert groups == {(1, 0): 2, (0, 0): 1}


def test_copies_keep_their_values_when_the_original_changes(engine: MxnetEngine) -> None:
    given = engine.from_host(np.array([[7.0, 8.0]], np.float32))
    copy, first, target = engine.copy(given), engine.first_element(given), engine.zeros((1, 2)).astype("float16")
    engine.overwrite(target, given)
    given[:] = 0
    assert engine.to_host(copy).tolist() == [[7, 8]]
    assert (engine.to_number(first), first.shape) == (7.0, (1,))
    assert (engine.to_host(target).tolist(), target.dtype) == ([[7, 8]], np.float16)


def test_only_valid_images_count(engine: MxnetEngine) -> None:
    logits, labels = engine.from_host(np.eye(4, dtype=np.float32)), engine.from_host(np.array([0, 1, 0, 3], np.float32))
    assert [engine.to_number(engine.count_correct(logits, labels, valid)) for valid in (1, 2, 3, 4)] == [1, 2, 2, 3]


def test_devices_of_one_process_have_numbers_and_features_are_facts(engine: MxnetEngine) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.engine.name=mxnet"])
    ranks = [replace(ALONE, local_rank=2, launcher=launcher) for launcher in ("devices", "Horovod")]
    assert [MxnetEngine(cluster, rank).context for rank in ranks] == [mx.cpu(2), mx.cpu(0)]
    features = engine.features()
    assert features["gpus"] == mx.context.num_gpus()
    assert {"CUDA", "CUDNN", "NCCL"} <= set(features)


def test_parameters_lose_the_prefixes_of_their_kinds(engine: MxnetEngine, tmp_path: Path) -> None:
    path = str(tmp_path / "a.params")
    mx.nd.save(path, {"arg:weight": mx.nd.array([1, 2]), "aux:mean": mx.nd.array([3]), "gamma": mx.nd.array([4])})
    read = engine.read_parameters(Path(path))
    assert {name: array.tolist() for name, array in read.items()} == {"weight": [1, 2], "mean": [3], "gamma": [4]}
    mx.nd.save(path, [mx.nd.array([1])])
    with pytest.raises(ValueError, match="holds arrays without names; give a file"):
        engine.read_parameters(Path(path))


def test_operators_of_a_profile_are_ordered_and_reductions_are_told_apart() -> None:
    def event(kind: str, name: str, time: int) -> dict[str, Any]:
        return {"ph": kind, "name": name, "ts": time}

    rows = [("B", "horovod_sum", 30), ("E", "horovod_sum", 90), ("B", "conv", 10), ("E", "conv", 40)]
    rows += [("B", "DeleteVariable", 1), ("E", "DeleteVariable", 2), ("b", "conv", 10), ("e", "conv", 40), ("M", "", 0)]
    assert read_operators({"traceEvents": [event(*row) for row in rows]}) == [
        Operator("conv", 10, 40, is_communication=False),
        Operator("horovod_sum", 30, 90, is_communication=True),
    ]


@pytest.mark.parametrize("number_type", ["float16", "float32", "int32", "uint8"])
def test_a_tensor_of_dali_is_copied_with_its_type(engine: MxnetEngine, number_type: str) -> None:
    tensors = pytest.importorskip("nvidia.dali.tensors")
    values = np.arange(24, dtype=number_type).reshape(2, 3, 4)
    array = engine.from_dali(tensors.TensorCPU(values, "HWC"), is_on_host=True)
    values[:] = 0
    assert engine.to_host(array).dtype == number_type
    np.testing.assert_array_equal(engine.to_host(array), np.arange(24).reshape(2, 3, 4))
    assert engine.from_host(np.arange(3, dtype=number_type)).dtype == np.dtype(number_type)


def test_a_gpus_rank_takes_the_gpu_of_its_number_on_the_node_and_the_one_cpu() -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=mxnet"]).model_copy(update={"device": "gpu"})
    engine = MxnetEngine(cluster, replace(ALONE, rank=5, world_size=8, local_rank=1, local_size=4))
    assert (engine.context, engine._host) == (mx.gpu(1), mx.cpu(0))


def test_a_file_that_holds_no_parameters_is_refused_in_one_line(engine: MxnetEngine, tmp_path: Path) -> None:
    path = tmp_path / "a.params"
    path.write_bytes(b"not a file of parameters")
    with pytest.raises(
        UserError, match=r"a\.params: is no file of MXNet parameters \(.+\); export it again$"
    ) as refused:
        engine.read_parameters(path)
    assert "\n" not in str(refused.value)


def test_a_trace_begins_and_ends_when_nothing_runs(engine: MxnetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(mx.nd, "waitall", lambda: told.append("nothing runs"))
    for name in ("set_config", "set_state", "dump"):
        monkeypatch.setattr(
            mx.profiler, name, lambda *given, name=name, **options: told.append((name, *given, *options.items()))
        )
    engine.begin_trace(Path("trace.json"))
    engine.end_trace()
    settings = ("profile_symbolic", True), ("profile_imperative", True), ("filename", "trace.json")
    assert told == [
        "nothing runs", ("set_config", *settings), ("set_state", "run"),
        "nothing runs", ("set_state", "stop"), ("dump", ("finished", True)),
    ]  # fmt: skip


def test_a_device_of_a_process_makes_its_arrays_on_itself_also_those_of_dali() -> None:
    tensors = pytest.importorskip("nvidia.dali.tensors")
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.engine.name=mxnet"])
    engine, own = MxnetEngine(cluster, replace(ALONE, local_rank=2, launcher="devices")), mx.cpu(2)
    made = engine.from_host(np.arange(3, dtype=np.float32))
    batch = engine.from_dali(tensors.TensorCPU(np.ones((2, 1, 1), np.float32), "HWC"), is_on_host=True)
    arrays = [made, batch, engine.zeros((3,)), engine.take(made, np.array([2, 0])), engine.copy(made)]
    arrays += [engine.flag(made, is_set=True), engine.first_element(made)]
    assert [array.context for array in arrays] == [own] * 7
    logits = mx.nd.array(np.eye(3), ctx=mx.cpu(0))
    assert engine.count_correct(logits, made, 3).context == own


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

    engine = MxnetEngine(load_cluster("laptop", ["cluster.engine.name=mxnet"]), ALONE)
    engine.context, engine._host = mx.cpu(3), mx.cpu(0)
    array = engine.from_dali(OnGpu(), is_on_host=False)
    assert (array.context, array.dtype) == (mx.cpu(3), np.dtype(number_type))
    np.testing.assert_array_equal(array.asnumpy(), values)
