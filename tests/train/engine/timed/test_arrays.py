"""Which framework's arrays a rehearsal reduces, and in which groups its gradients arrive."""

from typing import Any

import pytest

import train.engine.protocol
from configs import registry
from configs.load import load_cluster
from tests.engines import ALONE
from train.engine.timed import engine as timed_engine
from train.engine.timed import open_engine


@pytest.mark.parametrize(
    ("kind", "installed", "taken"),
    [
        ("shared_memory", "torch", "torch"),
        ("shared_memory", "mxnet", "mxnet"),
        ("horovod", "torch", "mxnet"),
        ("torch_distributed", "mxnet", "torch"),
    ],
)
def test_arrays_are_the_installed_frameworks_if_the_communicator_sums_them(
    monkeypatch: pytest.MonkeyPatch, kind: str, installed: str, taken: str
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(registry, "installed_engine", lambda: installed)
    monkeypatch.setattr(train.engine.protocol, "open_engine", lambda cluster, _: opened.append(cluster.engine.name))
    monkeypatch.setattr(timed_engine, "TimedEngine", lambda arrays, cluster, identity: (cluster, identity))
    cluster = load_cluster("laptop", ["cluster.engine.name=torch"])
    other = cluster.communication.model_copy(update={"kind": kind})
    timed = cluster.model_copy(update={"communication": other})
    made: Any = open_engine(timed, ALONE)
    assert made == (timed, ALONE)
    assert opened == [taken]
