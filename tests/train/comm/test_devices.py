"""Threads as ranks: a failing device ends the others, and its cause is what one gets to know."""

import threading
import time

import pytest

mx = pytest.importorskip("mxnet")

from configs.load import load_cluster
from train.comm.communicator import (
    Communicator,
    Connect,
    SingleProcess,
    WorldMismatch,
    first_collective,
    start_communicator,
)
from train.comm.devices import run_ranks_here
from train.rank.identity import Identity
from train.rank.startup import Ledger

ALONE = Identity(0, 1, 0, 1, "here", "Horovod")


def test_what_kept_the_communicator_from_coming_up_is_what_whoever_waits_gets() -> None:
    def connect(_identity: Identity, _ledger: Ledger) -> Communicator:
        raise WorldMismatch(ALONE, "Horovod sees rank 0 of 1")

    pending = start_communicator(ALONE, Ledger(), connect)
    with pytest.raises(WorldMismatch, match="Horovod sees rank 0 of 1"):
        pending.result()


def test_each_device_is_a_rank_of_one_world() -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices"])
    seen: list[tuple[int, int, int, int, str, bool]] = []
    process = Ledger()

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        place = identity.rank, identity.world_size, identity.local_rank, identity.local_size, identity.launcher
        seen.append((*place, ledger is process))
        return int(connect(identity, ledger).sum_integers("two", [1]) != [2])

    assert run_ranks_here(cluster, ALONE, process, main) == 0
    assert sorted(seen) == [(0, 2, 0, 2, "devices", True), (1, 2, 1, 2, "devices", False)], (
        "one ledger is the process's"
    )


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


def test_the_first_collective_sees_every_rank_in_its_place() -> None:
    class Other(SingleProcess):
        def gather(self, name: str, value: int) -> list[int]:
            return [value, 0]

    ledger = Ledger()
    with pytest.raises(AssertionError, match=r"\[1, 0\]"):
        first_collective(Other(), Identity(1, 2, 1, 2, "here", "Slurm"), ledger)
    alone = SingleProcess()
    assert first_collective(alone, ALONE, ledger) is alone
    assert [row["phase"] for row in ledger.to_json()["phases"]][1:] == ["communicator: first collective"] * 2


@pytest.mark.parametrize("error", [OSError("record 7 is torn"), SystemExit(3)])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_device_that_fails_or_leaves_releases_those_that_wait_for_it_and_names_the_cause(
    bad: int, error: BaseException
) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=2"])
    released: list[str] = []

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator = connect(identity, ledger)
        if identity.rank == bad:
            raise error
        try:
            communicator.gather_bytes("never", b"")
        except Exception as released_by:
            released.append(type(released_by).__name__)
            raise
        return 0

    with pytest.raises(type(error), match=str(error)):
        run_ranks_here(cluster, ALONE, Ledger(), main)
    while not released:
        time.sleep(0.001)
    assert released == ["PeerFailed"]
