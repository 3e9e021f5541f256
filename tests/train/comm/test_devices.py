"""Threads as ranks: a failing device ends the others, and its cause is what one gets to know."""

import threading
import time

import mxnet as mx
import pytest

from configs.load import load_cluster
from train.comm.communicator import (
    Communicator,
    Connect,
    SingleProcess,
    WorldMismatch,
    first_collective,
    libraries_of,
    start_communicator,
)
from train.comm.devices import run_ranks_here
from train.rank.identity import Identity
from train.rank.startup import Ledger

ALONE = Identity(0, 1, 0, 1, "here", "Horovod")


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_failing_device_ends_the_others_and_names_the_cause(bad: int) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=3"])

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator = connect(identity, ledger)
        assert communicator.gather("ranks", identity.rank) == [0, 1, 2]
        if identity.rank == bad:
            raise OSError("record 7 is torn")
        communicator.gather("never", 0)
        return 0

    with pytest.raises(OSError, match="record 7 is torn"):
        run_ranks_here(cluster, ALONE, Ledger(), main)


def test_three_devices_add_up_average_and_take_the_sum_of_integers() -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=3"])

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator, number = connect(identity, ledger), identity.rank + 1.0
        added, mean = mx.nd.full((2,), number), mx.nd.full((2,), number)
        communicator.reduce("added", [added])
        communicator.average("mean", [mean])
        found = added.asnumpy().tolist(), mean.asnumpy().tolist(), communicator.sum_integers("sum", [identity.rank, 1])
        assert found == ([6, 6], [2, 2], [3, 3])
        return 0

    assert run_ranks_here(cluster, ALONE, Ledger(), main) == 0


@pytest.mark.parametrize(("statuses", "worst"), [([0, 0], 0), ([0, 1], 1), ([1, 0], 1)])
def test_the_worst_exit_status_of_the_devices_counts(statuses: list[int], worst: int) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices"])
    assert run_ranks_here(cluster, ALONE, Ledger(), lambda identity, *_: statuses[identity.rank]) == worst


def test_what_kept_the_communicator_from_coming_up_is_what_whoever_waits_gets() -> None:
    def connect(_identity: Identity, _ledger: Ledger) -> Communicator:
        raise WorldMismatch("Horovod sees rank 0 of 1")

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


@pytest.mark.parametrize(("device", "kind"), [("cpu", "local"), ("gpu", "device")])
def test_gpus_of_one_process_are_summed_on_the_gpus_and_nothing_else_there(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str
) -> None:
    kinds: list[str] = []
    monkeypatch.setattr(mx.kv, "create", kinds.append)
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices"]).model_copy(update={"device": device})
    assert run_ranks_here(cluster, ALONE, Ledger(), lambda *_: 0) == 0
    assert kinds == [kind]


def test_a_process_of_one_rank_connects_as_its_cluster_file_says() -> None:
    cluster, process = load_cluster("laptop", ["cluster.communication.kind=none", "cluster.ranks_per_node=1"]), Ledger()

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        assert (identity, ledger) == (ALONE, process)
        assert isinstance(connect(identity, ledger), SingleProcess)
        return 7

    assert run_ranks_here(cluster, ALONE, process, main) == 7


def test_every_device_gets_every_content_and_each_bucket_its_own_sums() -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices"])

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator, rank = connect(identity, ledger), identity.rank
        first, second = mx.nd.full((2,), rank + 1.0), mx.nd.full((3,), 10.0)
        for _ in range(2):
            communicator.reduce("first", [first, second], priority=-1)
            communicator.reduce("second", [second])
        assert (first.asnumpy().tolist(), second.asnumpy().tolist()) == ([6.0] * 2, [160.0] * 3)
        assert communicator.gather_bytes("contents", b"ab"[: rank + 1]) == [b"a", b"ab"]
        return 0

    assert run_ranks_here(cluster, ALONE, Ledger(), main) == 0


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


def test_a_communicator_without_a_library_has_none_for_the_doctor() -> None:
    assert libraries_of("none") == {}
    assert list(libraries_of("torch_distributed")) == ["torch.distributed"]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_device_that_leaves_its_program_releases_those_that_wait_for_it_too(bad: int) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=2"])
    released: list[str] = []

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator = connect(identity, ledger)
        if identity.rank == bad:
            raise SystemExit(3)
        try:
            communicator.gather_bytes("never", b"")
        except Exception as error:
            released.append(type(error).__name__)
            raise
        return 0

    with pytest.raises(SystemExit, match="3"):
        run_ranks_here(cluster, ALONE, Ledger(), main)
    while not released:
        time.sleep(0.001)
    assert released == ["PeerFailed"]


def test_the_first_device_writes_the_ledger_of_the_process_and_the_others_their_own() -> None:
    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=3"])
    shared, seen = Ledger(), dict[int, bool]()

    def main(identity: Identity, ledger: Ledger, _connect: Connect) -> int:
        seen[identity.rank] = ledger is shared
        return 0

    assert run_ranks_here(cluster, ALONE, shared, main) == 0
    assert seen == {0: True, 1: False, 2: False}
