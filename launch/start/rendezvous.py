"""How ranks learn their numbers and find each other, under every launcher and for every kind of communication.

`configs.registry.COMMUNICATORS` names the rendezvous of each kind. On one machine the local launcher gives each rank
what it needs. Other launchers do so themselves, or ``python -m launch.start.rendezvous --kind KIND NODES
RANKS_PER_NODE`` does, for a job script: it prints how to find the server, and serves until its standard input closes,
so that it cannot outlive the job script at the other end of the pipe. It must run before any rank: a rank over Gloo
tries to connect for 1.5 s only. The servers authenticate nobody. Imports PyTorch only to serve PyTorch's store.
"""

import secrets
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from configs.arguments import Parser, exit_status, parse
from configs.rank_variables import connecting_library
from configs.registry import COMMUNICATORS, RendezvousName

if TYPE_CHECKING:  # A job script's ranks wait for this program, and the schema is three quarters of its start.
    from configs.schema import Cluster

_FAR_AWAY = ("203.0.113.1", 9)
"""An address that no machine has (RFC 5737), by which the kernel tells its default route; nothing is sent."""

_HOLD_S = 2.0
"""Longest time before a question without a value is answered. The asking rank looks at its own timeout in between."""
REQUEST_S = 10.0
"""Longest pause within a request: a rank sends all of it at once."""
_BACKLOG = 1024
"""Connections that the kernel keeps for the server; with fewer than ranks, some try again after a second or more."""
_MOST_BYTES = 1 << 20
"""Longest request. The addresses of a thousand ranks take 136 kB."""


class Rendezvous:
    """Ranks that find each other by other means than the launcher's, or need not: they learn their numbers.

    Attributes:
        served: The names of the variables that `serve` yields.
    """

    served: tuple[str, ...] = ()

    @contextmanager
    def local_ranks(self, num_ranks: int) -> Iterator[Callable[[int], Mapping[str, str]]]:
        """Let the ranks of this machine meet, on the loopback only, while the block runs.

        Yields:
            The function from a rank's number to its variables: its number, and how it finds the others. One whose name
            ends in ``_FD`` names an open file that the rank inherits.
        """
        with self.serve(1, num_ranks) as found:
            yield lambda rank: {**_numbers(rank, num_ranks), **found}

    def is_served(self, cluster: "Cluster") -> bool:
        """Return whether this program serves ranks that another launcher starts."""
        del cluster
        return False

    @contextmanager
    def serve(self, num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
        """Serve ranks on any node while the block runs.

        Yields:
            The variables by which the ranks find the server.
        """
        del num_nodes, ranks_per_node
        yield {}


class _Values(socketserver.ThreadingTCPServer):
    """The values of a key-value server over HTTP, by path.

    While ranks over Gloo connect, each asks for the address of every other rank, and asks again after 10 ms where the
    other one has not come yet. Horovod's own server keeps five connections waiting, and answers "not found" at once, so
    64 ranks spend their time on asking. This server holds a question until the value is there.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG
    is_over = False

    def __init__(self, host: str) -> None:
        self.values: dict[bytes, bytes] = {}
        self.changed = threading.Condition()
        super().__init__((host, 0), _Request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a stranger on this machine may ask for anything, or keep a connection for nothing."""

    def serve(self) -> None:
        """Take connections until it is over."""
        while not self.is_over:
            self.handle_request()


class _Request(socketserver.StreamRequestHandler):
    """One connection to `_Values`, with one request."""

    server: _Values

    def handle(self) -> None:
        self.connection.settimeout(REQUEST_S)
        method, path, _ = self.rfile.readline(_MOST_BYTES).split()
        num_bytes = 0
        while (line := self.rfile.readline(_MOST_BYTES)).strip():
            name, _, value = line.partition(b":")
            num_bytes = int(value) if name.lower() == b"content-length" else num_bytes
        body = self.rfile.read(num_bytes) if 0 <= num_bytes < _MOST_BYTES else b""
        if line and len(body) == num_bytes:  # it is whole
            status, value = self._obey(method, path, body)
            head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(value))
            self.wfile.write(head + value)

    def _obey(self, method: bytes, path: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return status and content of the answer to a request."""
        values, changed = self.server.values, self.server.changed
        with changed:
            if method == b"GET":
                changed.wait_for(lambda: path in values or self.server.is_over, _HOLD_S)
                return (b"200 OK", values[path]) if path in values else (b"404 Not Found", b"")
            if method == b"PUT":
                values[path] = body
                changed.notify_all()
            elif method == b"DELETE":  # A rank takes its address back when all ranks have connected.
                values.pop(path, None)
            else:
                return b"400 Bad Request", b""
        return b"200 OK", b""


@contextmanager
def serve_values(host: str) -> Iterator[int]:
    """Serve GET, PUT and DELETE while the block runs, to anybody who can reach the address.

    Args:
        host: The address to listen on; empty for every address.

    Yields:
        The port.
    """
    with _Values(host) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            with server.changed:  # Ranks that wait learn at once that the server ends.
                server.is_over = True
                server.changed.notify_all()
            server.socket.shutdown(socket.SHUT_RDWR)  # It wakes the thread.
            thread.join()


class _Horovod(Rendezvous):
    """The HTTP key-value server by which Horovod's ranks over Gloo find each other; ``horovodrun`` serves its own."""

    served = ("HOROVOD_GLOO_RENDEZVOUS_PORT",)

    @contextmanager
    def local_ranks(self, num_ranks: int) -> Iterator[Callable[[int], Mapping[str, str]]]:
        with serve_values("127.0.0.1") as port:
            common = {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_HOSTNAME": "node0",
                "HOROVOD_SIZE": str(num_ranks),
                "HOROVOD_LOCAL_SIZE": str(num_ranks),
                "HOROVOD_CROSS_RANK": "0",
                "HOROVOD_CROSS_SIZE": "1",
            }
            yield lambda rank: {**common, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)}

    def is_served(self, cluster: "Cluster") -> bool:
        return cluster.launcher == "srun" and connecting_library(cluster) == "gloo"

    @contextmanager
    def serve(self, num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
        # On every address, also for a single node, because ranks of srun use the address of the node that runs srun.
        with serve_values("") as port:
            yield {self.served[0]: str(port)}


class _TorchStore(Rendezvous):
    """PyTorch's key-value store.

    On one machine rank 0 serves the store, on a socket that the local launcher has opened on the loopback: the port is
    taken before any rank starts, and out of reach of other machines. Ranks of srun and mpirun are served by this
    program, because only the machine on which the launcher runs is known before they start.
    """

    served = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")

    @contextmanager
    def local_ranks(self, num_ranks: int) -> Iterator[Callable[[int], Mapping[str, str]]]:
        with socket.create_server(("127.0.0.1", 0), backlog=num_ranks) as listener:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
            store = {"RANK_STORE_FD": str(listener.fileno())}
            yield lambda rank: {**_numbers(rank, num_ranks), **address, **({} if rank else store)}

    def is_served(self, cluster: "Cluster") -> bool:
        return cluster.launcher in ("srun", "mpirun") and connecting_library(cluster) != "mpi"

    @contextmanager
    def serve(self, num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
        # The socket listens at once and keeps the ranks that connect waiting; PyTorch is imported meanwhile.
        listener = socket.create_server(("", 0), backlog=num_nodes * ranks_per_node)
        port = listener.getsockname()[1]
        over = threading.Event()
        server = threading.Thread(target=_serve_store, args=(listener.detach(), port, over), daemon=True)
        server.start()
        try:
            # The last one says, as under torchrun, that no rank serves the store.
            yield dict(zip(self.served, (",".join(_addresses(num_nodes)), str(port), "True"), strict=True))
        finally:
            over.set()
            server.join()


def _serve_store(descriptor: int, port: int, over: threading.Event) -> None:
    from torch import __version__ as version  # noqa: PLC0415 (seconds, in this thread)
    from torch.distributed import TCPStore  # noqa: PLC0415

    # PyTorch's server over libuv, the faster one, takes an open socket since 2.8.
    is_new = tuple(map(int, version.split(".")[:2])) >= (2, 8)
    options = {"is_master": True, "wait_for_workers": False, "use_libuv": is_new}
    store = TCPStore("127.0.0.1", port, master_listen_fd=descriptor, **options)
    over.wait()
    del store


def _addresses(num_nodes: int) -> list[str]:
    """Return the addresses at which ranks may look for this machine, in the order in which to try them.

    That of the default route comes first. Addresses that are valid on one link only are left out: cards for management
    have them. The machine's name comes last: Debian and Ubuntu give it the address 127.0.1.1.
    """
    asking = ["hostname", "-I"]
    told = subprocess.run(asking, capture_output=True, text=True, check=False) if shutil.which(asking[0]) else None
    outer = [word for word in told.stdout.split() if ":" not in word] if told else []
    outer = [word for word in outer if not word.startswith("169.254.")]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking_route:
        asking_route.connect(_FAR_AWAY)
        outer.sort(key=asking_route.getsockname()[0].__ne__)
    return [*outer, socket.gethostname()] if num_nodes > 1 else [*outer, "127.0.0.1"]


class _SharedMemory(Rendezvous):
    """A name that only the ranks know; `train.comm.machine_ranks` listens there, so no server is needed."""

    served = ("RANK_MEETING",)

    def is_served(self, cluster: "Cluster") -> bool:
        return cluster.launcher != "local"

    @contextmanager
    def serve(self, num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
        del num_nodes, ranks_per_node
        yield {self.served[0]: f"ranks-{secrets.token_hex(16)}"}


RENDEZVOUS: Mapping[RendezvousName, Rendezvous] = {
    "horovod": _Horovod(),
    "torch": _TorchStore(),
    "shared_memory": _SharedMemory(),
    "none": Rendezvous(),
}


def rendezvous_of(kind: str) -> Rendezvous:
    """Return the rendezvous of ranks of a ``communication.kind``."""
    return RENDEZVOUS[COMMUNICATORS[kind].rendezvous]


def _numbers(rank: int, num_ranks: int) -> dict[str, str]:
    """Return the variables, named as by torchrun, that tell a rank of this machine its number."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the variables by which ranks find the server in one line, serve until standard input closes, return 0."""
    parser = Parser(prog="python -m launch.start.rendezvous", description=__doc__)
    parser.add_argument("--kind", default="horovod", choices=COMMUNICATORS, help="communication.kind of the ranks")
    parser.add_argument("num_nodes", metavar="NODES", type=int)
    parser.add_argument("ranks_per_node", metavar="RANKS_PER_NODE", type=int)
    return exit_status(lambda: parse(parser, _serve_until_closed, arguments))


def _serve_until_closed(*, kind: str, num_nodes: int, ranks_per_node: int) -> int:
    with rendezvous_of(kind).serve(num_nodes, ranks_per_node) as variables:
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in variables.items()) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
