"""The communicator over torch.distributed: Gloo between CPUs, NCCL between GPUs, MPI where PyTorch was built with it.

The buckets are the program's own. A bucket is one message for each type of number. Gradients that are neighbours in
memory travel where they lie; others travel in a flat buffer, which is kept from step to step.
"""

import atexit
import fcntl
import gc
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from configs.errors import UserError
from configs.rank_variables import interface_variables
from configs.schema import Communication
from train.comm.communicator import (
    Communicator,
    RendezvousTimeout,
    SingleProcess,
    WorldMismatch,
    first_collective,
)
from train.comm.neighbours import are_neighbours, flattened, like
from train.rank.identity import Identity
from train.rank.startup import Ledger

_FOR_EVER = timedelta(days=365)
"""Time limit of a sum, because the watchdog ends a rank that waits for too long, and can say for whom it waits."""

_TRY_S, _PAUSE_S = 3.0, 0.05
"""Time for one address to answer, and between two rounds over the addresses."""

_WORKS_HELD = 64
"""Number of collectives whose works are kept until torch.distributed has ended.

Up to PyTorch 2.7, a rank may hang at its end. A thread of Gloo that is the last to let go of a finished work waits for
the GIL, to free the work's tensors. The main thread, in the destructor of the process group, holds the GIL and waits
for that thread. A work that is kept here frees nothing in that thread. *Source*: PyTorch's pull request 154976.
"""

_SIOCGIFADDR = 0x8915
_BRIDGES = ("docker", "podman", "cni", "virbr", "br-", "veth")
"""How the names of interfaces begin by which the containers and virtual machines of one machine are connected."""

_REQUEST = struct.Struct("256s")
_ADDRESS = slice(20, 24)
"""Where ``struct ifreq`` holds the IPv4 address."""


def torch_features() -> dict[str, bool]:
    """Return which libraries torch.distributed was built with: ``gloo``, ``mpi``, ``nccl``.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from torch import distributed  # noqa: PLC0415 (seconds)

    return {name: bool(getattr(distributed, f"is_{name}_available")()) for name in ("gloo", "mpi", "nccl")}


LIBRARIES = {"torch.distributed": torch_features}
"""What ``./run.sh doctor`` loads for this communicator."""


def connect(communication: Communication, identity: Identity, ledger: Ledger) -> Communicator:
    """Initialise torch.distributed and return this rank's communicator."""
    if identity.launcher == "none":
        return SingleProcess()
    with ledger.phase("communicator: import"):
        import torch  # noqa: PLC0415 (seconds, in this thread)
    backend, timeout_s = communication.backend, communication.timeout_s
    built = [name for name, is_built in torch_features().items() if is_built]
    if backend not in built:
        raise UserError(f"communication.backend: got {backend!r}, this PyTorch was built with {', '.join(built)} only")
    device = torch.device("cuda", identity.local_rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda" and identity.local_rank < torch.cuda.device_count():
        # Each thread has a current device of its own, at first GPU 0, where every rank would open a context.
        torch.cuda.set_device(device)
    opened = TorchCommunicator(torch, device, identity.world_size)
    atexit.register(opened.leave)
    with ledger.phase("communicator: init"):
        try:
            _initialise(backend, identity, device, timeout_s)
        except (RuntimeError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or "timed out" in str(error).lower() or "timeout" in str(error).lower():
                raise RendezvousTimeout(timeout_s) from error
            raise
    communicator = first_collective(opened, identity, ledger)
    torch.distributed.distributed_c10d._set_pg_timeout(_FOR_EVER)
    return communicator


def _initialise(backend: str, identity: Identity, device: Any, timeout_s: int) -> None:
    """Bring torch.distributed up.

    Raises:
        WorldMismatch: The ranks that meet are not those of this run, or nobody says where they meet.
    """
    from torch import distributed  # noqa: PLC0415 (imported by the caller)

    timeout = timedelta(seconds=timeout_s)
    if backend == "mpi":
        distributed.init_process_group(backend)
    else:
        store = _open_store(identity, os.environ, timeout_s)
        options: dict[str, Any] = {}
        if device.type == "cuda":
            # The backward pass hides no sum that waits until its queued kernels have left a multiprocessor free.
            nccl = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options = {"device_id": device, "pg_options": nccl}  # the device connects NCCL now, not at the first sum
        rank, size = identity.rank, identity.world_size
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, **options)
    found = distributed.get_rank(), distributed.get_world_size()
    if found != (identity.rank, identity.world_size):
        raise WorldMismatch(identity, f"PyTorch sees rank {found[0]} of {found[1]}")


def _open_store(identity: Identity, environment: Mapping[str, str], timeout_s: int) -> Any:
    """Return the key-value store by which the ranks find each other, with this rank announced in it.

    Rank 0 serves the store, unless the launcher does: on the socket that the local launcher has opened, or on a port of
    its own.
    """
    from torch import __version__ as version  # noqa: PLC0415 (imported by the caller)
    from torch.distributed import TCPStore  # noqa: PLC0415

    if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
        raise WorldMismatch(identity, "MASTER_ADDR and MASTER_PORT do not give the rendezvous address")
    addresses, port = environment["MASTER_ADDR"].split(","), int(environment["MASTER_PORT"])
    is_server = identity.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
    if is_server:
        listener = environment.get("RANK_STORE_FD")
        # The server over libuv takes an open socket since PyTorch 2.8. The other one reads from one connection at a
        # time, and a stranger on this machine who sends half a request keeps all ranks from meeting.
        is_new = tuple(map(int, version.split(".")[:2])) >= (2, 8)
        opened = {} if listener is None else {"master_listen_fd": int(listener), "use_libuv": is_new}
        store = TCPStore(addresses[0], port, is_master=True, **opened, **options)
    way = _reach(addresses, port, timeout_s)
    if not is_server:
        store = TCPStore(way.address, port, **options)
    is_one_machine = identity.local_size == identity.world_size
    for name in interface_variables("") if is_one_machine else ():  # The caller's are for the network between machines.
        os.environ.pop(name, None)
    _choose_interface(way.own if is_one_machine else _own_address(store, way, identity))
    if store.add(f"processes of rank {identity.rank}", 1) != 1:
        raise WorldMismatch(identity, f"another process is rank {identity.rank}, too")
    first = store.compare_set("world size", "", str(identity.world_size)).decode()
    if first != str(identity.world_size):
        raise WorldMismatch(identity, f"another rank counts {first} ranks")
    return store


class _Way(NamedTuple):
    """A connection with the machine that serves the store.

    Attributes:
        address: The server's address or name, as it was given.
        own: This machine's address on the way.
        server: The server's address on the way.
        is_here: Whether this machine is the server.
    """

    address: str
    own: str
    server: str
    is_here: bool


def _reach(addresses: Sequence[str], port: int, timeout_s: int) -> _Way:
    """Return the way to the first of the addresses that answers; all are tried at once.

    Raises:
        TimeoutError: No address answered in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pool = ThreadPoolExecutor(len(addresses))
        tries = [pool.submit(_way_to, address, port) for address in addresses]
        pool.shutdown(wait=False)
        for each in tries:
            if way := each.result():
                return way
        time.sleep(_PAUSE_S)
    raise TimeoutError


def _way_to(address: str, port: int) -> _Way | None:
    """Return the way to an address, or None if nobody answers there."""
    with suppress(OSError), socket.create_connection((address, port), timeout=_TRY_S) as connection:
        own, server = connection.getsockname()[0], connection.getpeername()[0]
        with suppress(OSError), socket.socket(connection.family) as trial:
            trial.bind((server, 0))
            return _Way(address, own, server, is_here=True)
        return _Way(address, own, server, is_here=False)
    return None


def _own_address(store: Any, way: _Way, identity: Identity) -> str:
    """Return the address of this machine that leads to ranks of other nodes.

    On the server's machine every address answers, also one that no other node can reach: there, it is the one at which
    the first rank of another node has found the server. If all ranks turn out to be there, any address will do.
    """
    if not way.is_here:
        store.compare_set("address of the server", "", way.server)
        return way.own
    if store.add("ranks at the server", 1) == identity.world_size:
        store.set("address of the server", way.own)
    return str(store.get("address of the server").decode())


def _choose_interface(own_address: str) -> None:
    """Let Gloo and NCCL use the interface by which this rank reaches the store, unless the cluster file names one.

    Gloo itself would take the address of the host's name, which is 127.0.1.1 on Debian and Ubuntu. NCCL would take the
    first interface that is up. A bridge of containers, which reaches no other machine, is not taken.

    Raises:
        UserError: The cluster file, or the shell of the caller, names an interface that this machine does not have.
    """
    here = {name for _, name in socket.if_nameindex()}
    if absent := sorted({*os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")} - {"", *here}):
        raise UserError(
            f"GLOO_SOCKET_IFNAME: got {absent[0]}, allowed: an interface of {socket.gethostname()} "
            f"({', '.join(sorted(here))}); unset the variable, or mend cluster.node.interface, which sets it"
        )
    found = _ipv4_addresses().items()
    names = [name for name, address in found if address == own_address and not name.startswith(_BRIDGES)]
    if names:
        for variable, value in interface_variables(names[0]).items():
            os.environ.setdefault(variable, value)


def _ipv4_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each network interface of this machine that has one, by its name (Linux)."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, _REQUEST.pack(name.encode()))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[_ADDRESS])
    return found


class TorchCommunicator(Communicator):
    """The verbs of `Communicator` over an initialised torch.distributed.

    Args:
        torch: The module.
        device: Where bytes are gathered: the GPU for NCCL, otherwise the CPU.
        world_size: Number of ranks.
    """

    def __init__(self, torch: Any, device: Any, world_size: int) -> None:
        self._torch, self._distributed, self._device, self.world_size = torch, torch.distributed, device, world_size
        self._flats: dict[tuple[str, Any], tuple[Any, list[Any], list[Any]]] = {}
        self._pending: dict[str, list[tuple[Any, list[Any], list[Any]]]] = {}
        self._begun: deque[Any] = deque(maxlen=_WORKS_HELD)

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Start one allreduce for each type of number among the arrays; they run beside whatever comes next."""
        assert name not in self._pending, f"{name} is already being summed"
        by_type: dict[Any, list[Any]] = {}
        for array in arrays:
            by_type.setdefault(array.dtype, []).append(array)
        flights = []
        with self._torch.no_grad():
            for number_type, group in by_type.items():
                buffer, views = self._laid_flat((name, number_type), group)
                flights.append((self._begin(self._distributed.all_reduce, buffer), views, group))
        self._pending[name] = flights

    def _laid_flat(self, key: tuple[str, Any], arrays: list[Any]) -> tuple[Any, list[Any]]:
        """Return the memory of neighbours, or of a copy of other arrays with a view of each; copies are queued.

        The memory of neighbours serves these arrays alone, a buffer all arrays of the same shapes.
        """
        buffer, views, own = self._flats.get(key, (None, [], []))
        if not views and not (own and all(array is each for array, each in zip(arrays, own, strict=True))):
            if are_neighbours(arrays):
                buffer = flattened(arrays)
            else:
                sizes = [array.numel() for array in arrays]
                buffer = arrays[0].new_empty(sum(sizes))
                views = [like(part, array) for part, array in zip(buffer.split(sizes), arrays, strict=True)]
            self._flats[key] = buffer, views, arrays
        if views:
            self._torch._foreach_copy_(views, arrays)
        return buffer, views

    def complete(self) -> None:
        """Wait for every sum, and copy back what was not summed in place.

        Under NCCL the GPU's queue waits for the sums, under Gloo and MPI this thread does.
        """
        with self._torch.no_grad():
            for work, views, group in (flight for flights in self._pending.values() for flight in flights):
                work.wait()
                if views:
                    self._torch._foreach_copy_(group, views)
        self._pending.clear()

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """Gather one tensor."""
        own = self._torch.frombuffer(bytearray(row), dtype=self._torch.uint8).to(self._device)
        rows = own.new_empty(self.world_size, len(own))
        # Not into one tensor, which MPI can since PyTorch 2.6 only.
        self._begin(self._distributed.all_gather, list(rows), own).wait()
        return [each.tobytes() for each in rows.cpu().numpy()]

    def swap(self, array: Any, partner: int | None) -> Any | None:
        """Send and receive side by side."""
        if partner is None:
            return array
        distributed, received = self._distributed, self._torch.empty_like(array)
        sides = [(distributed.isend, array), (distributed.irecv, received)]
        works = distributed.batch_isend_irecv([distributed.P2POp(*side, partner) for side in sides])
        self._begun.extend(works)
        for work in works:
            work.wait()
        return received

    def _begin(self, collective: Callable[..., Any], *tensors: Any) -> Any:
        """Start a collective; return its work, which is also kept for a while (`_WORKS_HELD`)."""
        work = collective(*tensors, async_op=True)
        self._begun.append(work)
        return work

    def leave(self) -> None:
        """End torch.distributed, if it is up, at the end of the process.

        NCCL waits for ever for CUDA graphs that have captured its sums, also for one that only a cycle keeps alive.
        """
        if self._distributed.is_initialized():
            if self._device.type == "cuda":
                gc.unfreeze()
                gc.collect()
            self._distributed.destroy_process_group()
