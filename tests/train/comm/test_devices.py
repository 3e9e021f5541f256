"""Threads as ranks: a failing device ends the others, and its cause is what one gets to know."""

import threading
import time

import pytest

pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import Communicator, Connect, SingleProcess, start_communicator
from train.comm.devices import run_ranks_here
from train.rank.identity import Identity
from train.rank.startup import Ledger

ALONE = Identity(0, 1, 0, 1, "here", "Horovod")


def test_a_rank_may_end_while_its_communicator_is_still_coming_up() -> None:
    may_go_on = threading.Event()

    def connect(_identity: Identity, _ledger: Ledger) -> Communicator:
        may_go_on.wait()
        return SingleProcess()

    pending = start_communicator(ALONE, Ledger(), connect)
    (is_daemon,) = (each.daemon for each in threading.enumerate() if each.name == "communicator")
    may_go_on.set()
    assert is_daemon, "or the process would wait for the thread"
    assert isinstance(pending.result(), SingleProcess)


@pytest.mark.parametrize("error", [OSError("record 7 is torn"), SystemExit(3)])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_device_that_fails_or_leaves_releases_those_that_wait_for_it_and_names_the_cause(
    bad: int, error: BaseException
) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=2"])
    released: list[str] = []
    places, process = set[tuple[int, int, str, bool]](), Ledger()

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator = connect(identity, ledger)
        places.add((identity.rank, identity.local_rank, identity.launcher, ledger is process))
        if identity.rank == bad:
            raise error
        try:
            communicator.gather_bytes("never", b"")
        except Exception as released_by:
            released.append(type(released_by).__name__)
            raise
        return 0

    with pytest.raises(type(error), match=str(error)):
        run_ranks_here(cluster, ALONE, process, main)
    while not released:
        time.sleep(0.001)
    assert released == ["PeerFailed"]
    assert places == {(0, 0, "devices", True), (1, 1, "devices", False)}, "one ledger is the process's"
