"""How ranks under PyTorch meet, and what they say when others are not there, or no more."""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packaging.version import Version
from torch import __version__ as torch_version
from torch import distributed

from configs.errors import UserError
from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start.commands import run_under
from launch.start.rendezvous import RENDEZVOUS
from train.comm.communicator import RendezvousTimeout, WorldMismatch, connector
from train.rank.identity import Identity
from train.rank.startup import Ledger

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


class _Started:
    """Stands for the start of torch.distributed, which one process has once; remembers how it was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.arguments: list[dict[str, Any]] = []
        self.fails_with: Exception | None = RuntimeError("started")
        monkeypatch.setattr(distributed, "init_process_group", self._start)

    def _start(self, backend: str, **options: Any) -> None:
        self.arguments.append({"backend": backend, **options})
        if self.fails_with is not None:
            raise self.fails_with

    def connect(
        self, rank: int, world_size: int, variables: Mapping[str, str], timeout_s: int = 5, backend: str = "gloo"
    ) -> Any:
        """Connect as a rank with these variables; raise what keeps it from it, at last that the library is started."""
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK_STORE_FD", "TORCHELASTIC_USE_AGENT_STORE"):
            self._monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)
        sets = ["cluster.engine.name=torch", "cluster.communication.kind=torch_distributed"]
        cluster = load_cluster("laptop", [*sets, f"cluster.communication.timeout_s={timeout_s}"])
        communication = cluster.communication.model_copy(update={"backend": backend})
        # Only ranks of several machines are told of an interface.
        local_rank, local_size = (0, 1) if "GLOO_SOCKET_IFNAME" in variables else (rank, world_size)
        identity = Identity(rank, world_size, local_rank, local_size, "here", "Slurm")
        return connector(communication)(identity, Ledger())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> _Started:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return _Started(monkeypatch)


def test_processes_that_are_not_the_ranks_of_one_run_are_refused(started: _Started) -> None:
    with pytest.raises(WorldMismatch, match="Slurm started rank 0 of 2, but MASTER_ADDR and MASTER_PORT do not give"):
        started.connect(0, 2, {})
    with RENDEZVOUS["torch"].serve(1, 2) as found:
        variables = {"MASTER_ADDR": f"::2,{found['MASTER_ADDR']}", **dict(list(found.items())[1:])}
        with pytest.raises(RuntimeError, match="started"):
            started.connect(0, 2, variables)
        with pytest.raises(WorldMismatch, match="another process is rank 0, too"):
            started.connect(0, 2, variables)
        with pytest.raises(WorldMismatch, match=r"another rank counts 2 ranks\. Start the run with \./run\.sh train"):
            started.connect(2, 3, variables)
    (options,) = started.arguments
    del options["store"]
    assert options == {"backend": "gloo", "rank": 0, "world_size": 2, "timeout": timedelta(seconds=5)}


def test_rank_0_serves_the_store_on_the_launchers_socket_and_the_loopback_carries_the_sums(
    started: _Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the caller's network")
    with RENDEZVOUS["torch"].local_ranks(2) as start, socket.socket() as stranger:
        stranger.connect(("127.0.0.1", int(start(1)["MASTER_PORT"])))
        stranger.sendall(b"half a")  # which the store must not wait for
        for rank in range(2):
            variables = dict(start(rank))
            if rank == 0:  # PyTorch closes the socket that it is given, and so does the launcher.
                variables["RANK_STORE_FD"] = str(os.dup(int(variables["RANK_STORE_FD"])))
            with pytest.raises(RuntimeError, match="started"):
                started.connect(rank, 2, variables)
            found = [os.environ[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL")]
            assert found == ["lo", "=lo"]
        stores = [options["store"] for options in started.arguments]
        stores[0].set("asked", "answered")
        assert (stores[1].get("asked"), stores[1].get("world size")) == (b"answered", b"2")
    assert [options["rank"] for options in started.arguments] == [0, 1]


def test_of_several_machines_each_has_the_interface_that_it_is_told(started: _Started) -> None:
    with RENDEZVOUS["torch"].serve(1, 2) as found:
        variables = {**found, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo,nic7"}
        store = distributed.TCPStore("127.0.0.1", int(found["MASTER_PORT"]), is_master=False)
        store.set("address of the server", "127.0.0.1")
        with pytest.raises(UserError, match=r"^GLOO_SOCKET_IFNAME: got nic7, allowed: an interface of .*lo.*; unset"):
            started.connect(0, 2, variables)
        with pytest.raises(RuntimeError, match="started"):
            started.connect(1, 2, {**variables, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "chosen"})
    assert os.environ["NCCL_SOCKET_IFNAME"] == "chosen"


def test_a_bridge_of_containers_carries_no_sums(started: _Started, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = struct.pack("20s4s232s", b"", socket.inet_aton("127.0.0.1"), b"")
    for names, chosen in (([(1, "docker0")], None), ([(1, "docker0"), (2, "eth0")], "=eth0")):
        monkeypatch.setattr(socket, "if_nameindex", lambda names=names: names)
        monkeypatch.setattr(fcntl, "ioctl", lambda *_: answer)  # every interface has this address
        with RENDEZVOUS["torch"].serve(1, 2) as found, pytest.raises(RuntimeError, match="started"):
            started.connect(1, 2, {**found, "MASTER_ADDR": "127.0.0.1"})
        assert os.environ.get("NCCL_SOCKET_IFNAME") == chosen


@pytest.mark.ranks  # waits for a second
def test_a_store_that_nobody_serves_is_given_up_in_time(started: _Started) -> None:
    with RENDEZVOUS["torch"].local_ranks(2) as start:
        variables = dict(start(1))
    with pytest.raises(RendezvousTimeout, match="did not connect within 1 s"):
        started.connect(1, 2, variables, timeout_s=1)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TimeoutError("x"), RendezvousTimeout), (RuntimeError("wait Timed Out"), RendezvousTimeout),
     (RuntimeError("Timeout"), RendezvousTimeout), (RuntimeError("address in use"), RuntimeError)],
)  # fmt: skip
def test_only_ranks_that_do_not_come_in_time_have_not_met(
    started: _Started, error: Exception, raised: type[Exception]
) -> None:
    started.fails_with = error
    with RENDEZVOUS["torch"].serve(1, 2) as found, pytest.raises(raised) as caught:
        started.connect(0, 2, found)
    assert type(caught.value) is raised


@pytest.mark.parametrize("found", [(1, 8), (0, 2)])
def test_mpi_numbers_its_ranks_itself_and_another_world_than_the_launchers_is_refused(
    started: _Started, monkeypatch: pytest.MonkeyPatch, found: tuple[int, int]
) -> None:
    started.fails_with = None
    monkeypatch.setattr(distributed, "is_mpi_available", lambda: True)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: found[0])
    monkeypatch.setattr(distributed, "get_world_size", lambda: found[1])
    words = rf"Slurm started rank 1 of 2, but PyTorch sees rank {found[0]} of {found[1]}\. Start the run with"
    with pytest.raises(WorldMismatch, match=words):
        started.connect(1, 2, {}, backend="mpi")
    assert started.arguments == [{"backend": "mpi"}]


def test_nccl_is_connected_at_once_on_the_gpu_of_the_ranks_number_on_its_node(
    started: _Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # A PyTorch for CPUs has no NCCL.
    library = SimpleNamespace(Options=lambda **options: options)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", library, raising=False)
    told: list[Any] = []  # the device of the thread in which the ranks meet
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    with RENDEZVOUS["torch"].serve(1, 2) as found, pytest.raises(RuntimeError, match="started"):
        started.connect(1, 2, found, backend="nccl")
    (options,) = started.arguments
    assert (options["backend"], str(options["device_id"])) == ("nccl", "cuda:1")
    assert options["pg_options"] == {"is_high_priority_stream": True}, "sums overtake what else waits for the GPU"
    assert told == [options["device_id"]]


def test_a_backend_that_this_pytorch_was_built_without_is_refused(
    started: _Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "is_gloo_available", lambda: False)
    with pytest.raises(UserError, match=r"^communication\.backend: got 'gloo', this PyTorch was built with "):
        started.connect(0, 2, {})


@pytest.mark.ranks
@pytest.mark.skipif(
    Version(torch_version) < Version("2.8"), reason="Gloo's sums keep the time limit of the start there: docs/site.md"
)
def test_a_late_rank_is_waited_for_and_a_dead_one_is_no_failure_of_the_other(tmp_path: Path) -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=torch"])
    outcome = run_under(cluster, [sys.executable, "-c", LOST, str(tmp_path / "words")], rank_environment(cluster))
    assert outcome.failed == ((1, 128 + 9),)
    assert (tmp_path / "words").read_text(encoding="utf-8").startswith("True ")
