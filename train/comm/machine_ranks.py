"""How the ranks of one machine find each other: a socket between each two of them, and memory that all of them map.

The launcher gives all ranks a name that nobody can guess. Rank 0 listens at that name, in the kernel's abstract
namespace, so there is no file to leave behind and nothing for another machine to reach. The other ranks connect to it,
and rank 0 hands them the memory and the sockets to each other. Only processes of the same user are let in.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing

from train.comm.communicator import RendezvousTimeout, WorldMismatch
from train.comm.shared_sum import create_memory
from train.rank.identity import Identity

_NAME = "RANK_MEETING"
"""Variable with the name of the meeting, see `launch.start.rendezvous`."""

_PAUSE_S = 0.01
"""Time between two attempts to reach rank 0, which may still be importing."""

_GREETING = struct.Struct("<ii")
"""Rank and world size, as the other rank knows them; to a rank, the rank at the other end of the socket handed over."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket."""


Connections = tuple[Mapping[int, socket.socket], int]
"""A connected socket for each other rank, by rank, and the open file of the memory that all ranks share."""


class PeerLost(RuntimeError):
    """Another rank has ended; this error is never the first cause."""

    def __init__(self, who: str) -> None:
        super().__init__(f"Connection closed by peer: {who} has ended")


def meet(identity: Identity, environment: Mapping[str, str], timeout_s: int) -> Connections:
    """Connect with the other ranks.

    Args:
        identity: This rank.
        environment: The launcher's variables.
        timeout_s: How long to wait for the others.

    Raises:
        RendezvousTimeout: The other ranks did not come in time.
        PeerLost: A rank ended before all were connected.
        WorldMismatch: The ranks that come are not those of this run, or nobody says where they meet.
    """
    name = environment.get(_NAME)
    if name is None:
        raise WorldMismatch(identity, f"no {_NAME} gives the rendezvous address")
    deadline = time.monotonic() + timeout_s
    try:
        return _host(identity, name, deadline) if identity.rank == 0 else _visit(identity, name, deadline)
    except (TimeoutError, ConnectionRefusedError):
        raise RendezvousTimeout(timeout_s) from None
    except (ConnectionResetError, BrokenPipeError):
        raise PeerLost("a rank" if identity.rank == 0 else "rank 0") from None


def _host(identity: Identity, name: str, deadline: float) -> Connections:
    """Let the other ranks in, then hand out the memory and the sockets between them."""
    peers: dict[int, socket.socket] = {}
    with ExitStack() as on_error:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            try:
                listener.bind(f"\0{name}")
            except OSError as error:
                raise WorldMismatch(identity, f"another process is rank 0, too ({error.strerror})") from None
            listener.listen(identity.world_size)
            while len(peers) < identity.world_size - 1:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                guest = on_error.enter_context(listener.accept()[0])
                if _is_same_user(guest):
                    peers[_rank_of(guest, identity, peers, deadline)] = guest
                else:
                    guest.close()
        memory = create_memory()
        on_error.callback(os.close, memory)
        for rank, guest in peers.items():
            socket.send_fds(guest, [_GREETING.pack(0, identity.world_size)], [memory])
            for other in range(1, rank):
                with ExitStack() as ends:
                    for end, here, there in zip(socket.socketpair(), (rank, other), (other, rank), strict=True):
                        ends.enter_context(end)
                        socket.send_fds(peers[here], [_GREETING.pack(there, identity.world_size)], [end.fileno()])
        on_error.pop_all()
    return peers, memory


def _rank_of(guest: socket.socket, identity: Identity, peers: Mapping[int, socket.socket], deadline: float) -> int:
    """Return which rank has come, by its greeting."""
    guest.settimeout(max(deadline - time.monotonic(), 0.001))
    greeting = guest.recv(_GREETING.size)
    if not greeting:
        raise ConnectionResetError
    rank, world_size = _GREETING.unpack(greeting)
    if world_size != identity.world_size or rank in peers or not 0 < rank < world_size:
        raise WorldMismatch(identity, f"rank {rank} of {world_size} connected to the rendezvous")
    return int(rank)


def _visit(identity: Identity, name: str, deadline: float) -> Connections:
    """Go to rank 0 and return what it hands out."""
    with ExitStack() as on_error:
        host = on_error.enter_context(_reach(name, deadline))
        if not _is_same_user(host):
            raise WorldMismatch(identity, "a process of another user listens at the rendezvous address")
        host.settimeout(max(deadline - time.monotonic(), 0.001))
        host.sendall(_GREETING.pack(identity.rank, identity.world_size))
        peers, memory = {0: host}, -1
        while memory < 0 or len(peers) < identity.world_size - 1:
            greeting, descriptors, _, _ = socket.recv_fds(host, _GREETING.size, 1)
            if not descriptors:
                raise ConnectionResetError
            rank, _ = _GREETING.unpack(greeting)
            if rank == 0:
                memory = descriptors[0]
                on_error.callback(os.close, memory)
            else:
                peers[rank] = on_error.enter_context(socket.socket(fileno=descriptors[0]))
        on_error.pop_all()
    return peers, memory


def _reach(name: str, deadline: float) -> socket.socket:
    """Return a socket that is connected with rank 0, which may not listen yet."""
    while True:
        guest = socket.socket(socket.AF_UNIX)
        try:
            guest.connect(f"\0{name}")
            return guest
        except ConnectionRefusedError:
            guest.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _is_same_user(guest: socket.socket) -> bool:
    credentials = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
