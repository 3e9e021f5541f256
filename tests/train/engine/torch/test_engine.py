"""The verbs of the engine: arrays in and out, counts, traces."""

from __future__ import annotations

import platform
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from tests.engines import ALONE
from train.engine.protocol import Engine, open_engine

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Open the engine as a run does."""
    _, cluster = load_both("digits", "laptop", ["cluster.engine.name=torch", "cluster.engine.threads=2"])
    return open_engine(cluster, ALONE)


def test_threads_are_those_of_the_cluster_file(engine: Engine) -> None:
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@pytest.mark.medium
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_a_step_gets_the_memory_of_the_step_before(engine: Engine) -> None:
    def pages_from_the_kernel() -> int:
        # Of this thread alone: threads of tests before may get pages meanwhile.
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        activations = [torch.ones(1 << size) for size in (21, 22, 22, 22, 22)]
        assert len(activations) == 5
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    # 72 MiB in pages of 4 KiB, or of 2 MiB. The first steps fill the gaps that tests before have left in the heap.
    assert min(pages_from_the_kernel() for _ in range(32)) < 16


def test_the_first_element_is_taken_in_every_order_of_memory(engine: Engine) -> None:
    weight = torch.arange(48.0).view(2, 4, 2, 3).permute(0, 3, 1, 2)
    assert engine.to_host(engine.first_element(weight)).tolist() == [0.0]
    assert engine.to_host(engine.flag(weight, is_set=True)).sum() == 48


def test_a_host_copy_has_the_tensors_values_in_the_tensors_order_of_memory(engine: Engine) -> None:
    tensor = torch.arange(120.0).view(2, 4, 5, 3).permute(0, 3, 1, 2)
    found = engine.to_host(tensor)
    np.testing.assert_array_equal(found, np.arange(120.0).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2))
    assert found.strides == tuple(4 * stride for stride in tensor.stride()), "another order takes longer"
    tensor.zero_()
    assert found.any(), "it shares no memory"


@pytest.mark.medium
def test_a_gpus_rank_takes_its_own_gpu_and_computes_float32_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.cuda, "Stream", told.append)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    cluster = load_both("digits", "laptop", ["cluster.engine.name=torch"])[1].model_copy(update={"device": "gpu"})
    engine: Any = open_engine(cluster, replace(ALONE, local_rank=3))
    assert told == [torch.device("cuda", 3)] * 2
    assert engine.device == torch.device("cuda", 3)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (True, False)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_sixteen_bits_reach_the_host_as_they_are_or_as_float32_where_numpy_lacks_them(engine: Engine) -> None:
    values = torch.tensor([[1.5, -2.0, 0.25]]).t()
    for number_type, name in ((torch.bfloat16, "float32"), (torch.float16, "float16"), (torch.float32, "float32")):
        array = values.to(number_type)
        host = engine.to_host(array)
        assert (host.dtype, host.tolist()) == (name, [[1.5], [-2.0], [0.25]])
        assert host.flags.c_contiguous
        whole = engine.to_float32(array)
        assert whole.dtype == torch.float32
        assert (whole is array) == (number_type == torch.float32)
        target = torch.zeros(3, 1, dtype=torch.bfloat16)
        engine.overwrite(target, array)
        assert target.tolist() == [[1.5], [-2.0], [0.25]]


@pytest.mark.slow
def test_a_trace_has_the_operators_between_its_ends_and_no_operator_within_another(
    engine: Engine, tmp_path: Path
) -> None:
    weight = torch.ones(64, 64, requires_grad=True)
    for number in range(2):
        (weight @ weight).sum().backward()
        engine.begin_trace(tmp_path / f"{number}.json")
        (weight @ weight).relu().sum().backward()
        engine.end_trace()
        operators = engine.read_trace(tmp_path / f"{number}.json")
        names = [each.name for each in operators]
        assert {"matmul", "relu", "sum"} <= set(names)
        assert "mm" not in names[: names.index("relu")], "matmul calls mm"
        assert all(each.begin_us <= each.end_us for each in operators)
        assert operators == sorted(operators, key=lambda each: each.begin_us)
        assert operators[0].begin_us > 1.7e15, "microseconds since 1970"
