"""How a rank comes to its parameter servers. What it sends to them is tried by real ranks (test_communicator.py)."""

import pytest

mx = pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import WorldMismatch, connector
from train.rank.identity import Identity
from train.rank.startup import Ledger


def test_servers_that_expect_another_number_of_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    create = mx.kv.create
    monkeypatch.setattr(mx.kv, "create", lambda _: create("local"))  # the store of this process, which is one rank
    communication = load_cluster("laptop", ["cluster.communication.kind=parameter_server"]).communication
    refused = r"^Horovod started rank 0 of 2, but the parameter servers expect 1 ranks\. Start"
    with pytest.raises(WorldMismatch, match=refused):
        connector(communication)(Identity(0, 2, 0, 2, "here", "Horovod"), Ledger())
