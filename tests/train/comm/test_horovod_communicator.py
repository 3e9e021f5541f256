"""How a rank comes to Horovod. What it sums is tried by ranks of their own (test_communicator.py)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import SingleProcess, WorldMismatch, connector, libraries_of
from train.comm.horovod_communicator import HorovodCommunicator, horovod_features
from train.rank.identity import Identity
from train.rank.startup import Ledger


class _Alone:
    """Stands for ``horovod.mxnet`` in a process that Horovod takes for the only rank."""

    Sum = "sum"

    def init(self) -> None:
        """Be up."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def allgather(self, tensor: Any, *, name: str) -> Any:
        return tensor


def _connect(identity: Identity, ledger: Ledger) -> Any:
    return connector(load_cluster("laptop", ["cluster.communication.kind=horovod"]).communication)(identity, ledger)


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 1)])
def test_horovod_that_sees_another_world_than_the_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    world = _Alone()
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
