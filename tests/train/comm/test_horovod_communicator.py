"""What a rank makes of Horovod, with ranks that are threads and a stand-in for Horovod that sums between them.

Horovod itself is tried by ranks of their own (test_communicator.py): one process has one rank.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import SingleProcess, WorldMismatch, connector, libraries_of
from train.comm.horovod_communicator import HorovodCommunicator, horovod_features
from train.rank.identity import Identity
from train.rank.startup import Ledger


class _Horovod:
    """One rank's stand-in for ``horovod.mxnet``, whose functions do what Horovod's documentation says of them."""

    Sum, Average = "sum", "average"

    def __init__(self, rank: int = 0, rows: list[Any] | None = None) -> None:
        self._rank, self._rows = rank, [None] if rows is None else rows
        self._barrier = threading.Barrier(1)
        self.calls: list[tuple[Any, ...]] = []
        self.is_up = False

    def meets(self, barrier: threading.Barrier) -> _Horovod:
        self._barrier = barrier
        return self

    def _all(self, own: Any) -> list[Any]:
        self._barrier.wait(20)
        self._rows[self._rank] = own
        self._barrier.wait(20)
        return list(self._rows)

    def init(self) -> None:
        self.is_up = True

    def rank(self) -> int:
        assert self.is_up
        return self._rank

    def size(self) -> int:
        assert self.is_up
        return len(self._rows)

    def grouped_allreduce_(self, tensors: list[Any], *, op: str, name: str, priority: int = 0) -> None:
        self.calls.append((op, name, priority, len(tensors)))
        rows = self._all([each.asnumpy() for each in tensors])
        for tensor, column in zip(tensors, zip(*rows, strict=True), strict=True):
            tensor[:] = np.sum(column, axis=0) / (len(rows) if op == self.Average else 1)

    def allreduce(self, tensor: Any, *, op: str, name: str) -> Any:
        assert (op, name) == (self.Sum, "sums")
        return mx.nd.array(np.sum(self._all(tensor.asnumpy()), axis=0), dtype=tensor.dtype)

    def allgather(self, tensor: Any, *, name: str) -> Any:
        self.calls.append((name,))
        assert tensor.size, "Horovod sends no empty array"
        return mx.nd.array(np.concatenate(self._all(tensor.asnumpy())), dtype=tensor.dtype)


def _together(act: Callable[[HorovodCommunicator, int, _Horovod], Any]) -> list[Any]:
    """Return what each of three ranks returns."""
    barrier, rows = threading.Barrier(3), [None] * 3
    worlds = [_Horovod(rank, rows).meets(barrier) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda rank: act(HorovodCommunicator(worlds[rank]), rank, worlds[rank]), range(3)))


def test_a_bucket_is_one_grouped_sum_with_its_name_and_its_priority() -> None:
    def step(communicator: HorovodCommunicator, rank: int, world: _Horovod) -> Any:
        arrays = [mx.nd.full((2, 2), rank + 1.0), mx.nd.full((3,), 10.0)]
        communicator.reduce("bucket", arrays, priority=-4)
        communicator.complete()
        mean = [mx.nd.array([float(rank), 4.0])]
        communicator.average("mean", mean)
        return [each.asnumpy().tolist() for each in (*arrays, *mean)], world.calls

    numbers = [[[6.0, 6.0], [6.0, 6.0]], [30.0] * 3, [1.0, 4.0]]
    assert _together(step) == [(numbers, [("sum", "bucket", -4, 2), ("average", "mean", 0, 1)])] * 3


def _connect(identity: Identity, ledger: Ledger) -> Any:
    return connector(load_cluster("laptop", ["cluster.communication.kind=horovod"]).communication)(identity, ledger)


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 1)])
def test_horovod_that_sees_another_world_than_the_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    world = _Horovod()
    monkeypatch.setitem(sys.modules, "horovod", type(sys)("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.mxnet", world)
    ledger = Ledger()
    with pytest.raises(WorldMismatch) as refused:
        _connect(Identity(rank, size, rank, size, "here", "Slurm"), ledger)
    assert str(refused.value).startswith(f"Slurm started rank {rank} of {size}, but Horovod sees rank 0 of 1: this")
    communicator = _connect(Identity(0, 1, 0, 1, "here", "Slurm"), ledger)
    assert isinstance(communicator, HorovodCommunicator)
    assert [row["phase"] for row in ledger.to_json()["phases"][-3:]] == [
        "communicator: import", "communicator: init", "communicator: first collective",
    ]  # fmt: skip


def test_a_rank_that_nobody_started_needs_no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)  # whose import fails
    assert isinstance(_connect(Identity(0, 1, 0, 1, "here", "none"), Ledger()), SingleProcess)


def test_the_doctor_is_told_what_horovod_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    world = type(sys)("horovod.mxnet")
    world.__dict__.update(gloo_built=lambda: 1, mpi_built=lambda: False, nccl_built=lambda: 21000)
    monkeypatch.setitem(sys.modules, "horovod", type(sys)("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.mxnet", world)
    assert horovod_features() == {"gloo": True, "mpi": False, "nccl": True}
    assert list(libraries_of("horovod").items()) == [("Horovod", horovod_features)]
