"""How ranks under PyTorch meet, and what they say when others are not there, or no more."""

import os
import sys
from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start.commands import run_under
from launch.start.rendezvous import RENDEZVOUS
from train.comm import torch_communicator
from train.comm.communicator import RendezvousTimeout, WorldMismatch
from train.rank.identity import Identity
from train.rank.startup import Ledger

pytest.importorskip("torch")

LOST = """
import os, signal, sys, time
from configs.load import load_cluster
from train.comm.communicator import start_communicator, connector
from train.rank.failure import is_second_hand
from train.rank.identity import read_identity
from train.rank.startup import Ledger

identity = read_identity(os.environ)
cluster = load_cluster("laptop", ["cluster.engine.name=torch", "cluster.communication.timeout_s=2"])
comm = start_communicator(identity, Ledger(), connector(cluster.communication)).result()
import torch
late = torch.ones(10)
time.sleep(4 * identity.rank)
comm.reduce("late", [late])
comm.complete()
assert late[0] == 2
if identity.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.reduce("never", [torch.ones(10)])
    comm.complete()
except RuntimeError as error:
    open(sys.argv[1], "w").write(f"{is_second_hand(error)} {error}")
"""


def _identity(rank: int, world_size: int = 2) -> Identity:
    return Identity(rank, world_size, rank, world_size, "here", "Slurm")


def _open(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, variables: dict[str, str]) -> object:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    return torch_communicator._open_store(_identity(rank, world_size), variables, 5)


def test_gloo_takes_the_interface_of_the_ranks_own_address_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.7", "ib0": "10.1.0.7"}
    monkeypatch.setattr(torch_communicator, "_ipv4_addresses", lambda: addresses)
    environment = {"GLOO_SOCKET_IFNAME": "eth9"}
    monkeypatch.setattr(os, "environ", environment)
    for given, address, chosen in (
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "10.1.0.7", "eth9"),
        ({}, "10.1.0.7", "ib0"),
        ({}, "10.2.0.7", None),
    ):
        environment.clear()
        environment.update(given)
        torch_communicator._choose_interface(address)
        assert environment.get("GLOO_SOCKET_IFNAME") == chosen


def test_processes_that_are_not_the_ranks_of_one_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorldMismatch, match="Slurm started rank 0 of 2, but MASTER_ADDR and MASTER_PORT do not say"):
        _open(monkeypatch, 0, 2, {})
    with RENDEZVOUS["torch"].serve(1, 2) as found:
        variables = {"MASTER_ADDR": f"192.0.2.255,{found['MASTER_ADDR']}", **dict(list(found.items())[1:])}
        monkeypatch.setattr(torch_communicator, "_TRY_S", 0.2)
        kept = _open(monkeypatch, 0, 2, variables)
        with pytest.raises(WorldMismatch, match="another process is rank 0, too"):
            _open(monkeypatch, 0, 2, variables)
        with pytest.raises(WorldMismatch, match=r"another rank counts 2 ranks\. Start the run with \./run\.sh train"):
            _open(monkeypatch, 2, 3, variables)
        del kept


def test_rank_0_serves_the_store_on_the_launchers_socket_and_ranks_announce_the_interface_that_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: list[str] = []
    monkeypatch.setattr(torch_communicator, "_choose_interface", own.append)
    with RENDEZVOUS["torch"].local_ranks(2) as start:
        variables = [dict(start(rank).variables) for rank in range(2)]
        # PyTorch closes the socket that it is given, and so does the launcher.
        variables[0]["RANK_STORE_FD"] = str(os.dup(int(variables[0]["RANK_STORE_FD"])))
        stores = [torch_communicator._open_store(_identity(rank), variables[rank], 5) for rank in range(2)]
        stores[0].set("asked", "answered")
        assert stores[1].get("asked") == b"answered"
        assert stores[1].get("world size") == b"2"
    assert own == ["127.0.0.1"] * 2


@pytest.mark.ranks  # waits for a second
def test_a_store_that_nobody_serves_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with RENDEZVOUS["torch"].local_ranks(2) as start:
        variables = dict(start(1).variables)
    with pytest.raises(TimeoutError):
        torch_communicator._open_store(_identity(1), variables, 1)


@pytest.mark.ranks
def test_a_late_rank_is_waited_for_and_a_dead_one_is_no_failure_of_the_other(tmp_path: Path) -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=torch"])
    outcome = run_under(cluster, [sys.executable, "-c", LOST, str(tmp_path / "words")], rank_environment(cluster))
    assert outcome.failed == ((1, 128 + 9),)
    assert (tmp_path / "words").read_text(encoding="utf-8").startswith("True ")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TimeoutError("x"), RendezvousTimeout), (RuntimeError("wait Timed Out"), RendezvousTimeout),
     (RuntimeError("Timeout"), RendezvousTimeout),
     (RuntimeError("address in use"), RuntimeError)],
)  # fmt: skip
def test_only_ranks_that_do_not_come_in_time_have_not_met(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch_communicator, "_initialise", fail)
    communication = load_cluster("laptop", ["cluster.engine.name=torch"]).communication
    with pytest.raises(raised) as caught:
        torch_communicator._connect_torch(communication, _identity(0), Ledger())
    assert type(caught.value) is raised
