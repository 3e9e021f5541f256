"""How a rank comes to its parameter servers. What it sends to them is tried by real ranks (test_communicator.py)."""

from typing import Any

import pytest

mx = pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import WorldMismatch, connector
from train.comm.parameter_servers import AsynchronousServer, SynchronousServer
from train.rank.identity import Identity
from train.rank.startup import Ledger


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a rank a store of this process in place of one that servers hold; return the kinds it asked for."""
    kinds: list[str] = []
    create = mx.kv.create

    def open_here(kind: str) -> Any:
        kinds.append(kind)
        return create("local")

    monkeypatch.setattr(mx.kv, "create", open_here)
    return kinds


@pytest.mark.parametrize(
    ("kind", "store", "communicator"),
    [
        ("parameter_server", "dist_sync", SynchronousServer),
        ("parameter_server_async", "dist_async", AsynchronousServer),
    ],
)
def test_a_rank_opens_the_store_of_its_kind_of_servers(
    opened: list[str], kind: str, store: str, communicator: type
) -> None:
    communication = load_cluster("laptop", [f"cluster.communication.kind={kind}"]).communication
    ledger = Ledger()
    made = connector(communication)(Identity(0, 1, 0, 1, "here", "Horovod"), ledger)
    assert type(made) is communicator
    assert made.gather("value", 2**63) == [2**63]
    assert opened == [store]
    assert [row["phase"] for row in ledger.to_json()["phases"]] == [
        "interpreter", "communicator: import", "communicator: init", "communicator: first collective",
    ]  # fmt: skip
    with pytest.raises(
        WorldMismatch, match=r"^Horovod started rank 0 of 2, but the parameter servers expect 1 ranks\. Start"
    ):
        connector(communication)(Identity(0, 2, 0, 2, "here", "Horovod"), ledger)
