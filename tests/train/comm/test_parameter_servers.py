"""How a rank comes to its parameter servers, what it sends to them and makes of the answers, on a local store."""

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


def _store_of_two() -> Any:
    """Return a store to which another rank pushes the same as this one."""
    store = mx.kv.create("local")
    store._set_updater(lambda _key, pushed, held: (2 * pushed).copyto(held))
    return store


@pytest.mark.parametrize("size", [1, 1024, 1025])
def test_sums_come_back_into_the_arrays_and_means_are_over_the_ranks(size: int) -> None:
    server = SynchronousServer(mx, _store_of_two(), rank=0, world_size=4)
    kept = mx.nd.full((size,), 8.0)
    server.reduce("sum", [kept])
    assert (kept.asnumpy() == 16.0).all()
    server.average("mean", [kept])
    assert (kept.asnumpy() == 8.0).all()
    if size <= 1024:
        fresh = mx.nd.full((size,), 5.0)
        server.reduce("sum", [fresh])
        assert (fresh.asnumpy() == 10.0).all(), "a small array may be new in each step"


def test_an_asynchronous_rank_pushes_its_share_of_its_own_update(monkeypatch: pytest.MonkeyPatch) -> None:
    server = AsynchronousServer(mx, mx.kv.create("local"), rank=0, world_size=4)
    gradient, weight = mx.nd.array([1.0, 2.0]), mx.nd.array([10.0, 20.0])
    server.reduce("gradient", [gradient])
    assert gradient.asnumpy().tolist() == [4.0, 8.0]
    server.publish([weight])
    met: list[list[float]] = []
    monkeypatch.setattr(server, "_wait_for_all", lambda: met.append(weight.asnumpy().tolist()))
    for begun in (10.0, 11.0):
        assert weight.asnumpy()[0] == begun
        weight += 4.0
        server.exchange(settled=begun == 11.0)
    assert met == [[15.0, 25.0], [12.0, 22.0]], "all ranks meet before and after the weights that all shall have"
    monkeypatch.undo()
    assert weight.asnumpy().tolist() == [12.0, 22.0]
    assert [server.gather("odd", 2**63 + number)[0] for number in range(2)] == [2**63, 2**63 + 1]


def test_ranks_of_asynchronous_servers_meet_when_their_own_pushes_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    store = mx.kv.create("local")
    server = AsynchronousServer(mx, store, rank=0, world_size=2)
    order: list[str] = []
    monkeypatch.setattr(mx.nd, "waitall", lambda: order.append("pushes have arrived"))
    monkeypatch.setattr(store, "_barrier", lambda: order.append("meets"))
    server.gather("value", 1)
    assert order == ["pushes have arrived", "meets"]
