"""A process that imports the program once, and forks the ranks of a rehearsal from itself.

64 ranks on two cores take 0.86 s of processor time each until their first step, of which 0.55 s are imports; forked
ones take 0.26 s, and share the memory (EPYC, 2026-11-27). Ranks that compute are not forked: in the fork of a process,
MXNet computes with one thread, and CUDA does not work.

`launch.start.forked_rank` stands for each rank under a launcher. It connects, gives the rank its variables and outputs,
passes signals on, and ends as the rank does; when it is killed, so is the rank.
"""

import gc
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from configs.outputs import guard_outputs
from logs.folder import RunFolder
from train.__main__ import main as run_rank
from train.comm.communicator import libraries_of
from train.engine.protocol import open_engine
from train.rank.identity import Identity

_ORPHAN_S = 6.0
"""Time for ranks without a launcher to save their state and end, the same as in launch/supervise_rank.sh."""

_CREDENTIALS = struct.Struct("3i")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fork a rank for each connection to an open socket until standard input closes.

    Args:
        arguments: The run folder, and the number of the descriptor of the socket.

    Returns:
        0; in a forked rank, the exit status of the rank.
    """
    folder, descriptor = sys.argv[1:] if arguments is None else arguments
    try:
        _import_all(RunFolder(Path(folder)))
    except Exception:  # noqa: BLE001 (the process boundary: each rank then starts by itself, and tells the reason)
        return 1
    with socket.socket(fileno=int(descriptor)) as listener:
        is_rank = _Forks(listener).serve()
    return run_rank([folder]) if is_rank else 0


def _import_all(folder: RunFolder) -> None:
    from train import loop, session  # noqa: F401, PLC0415 (within the caller's try)
    from train.measure import progress  # noqa: F401, PLC0415

    open_engine(folder.cluster, Identity(0, 1, 0, 1, "", "none"))
    for load in libraries_of(folder.cluster.communication.kind).values():
        load()
    gc.freeze()  # A collection in a rank would copy the memory that ranks share.


class _Forks:
    """The forked ranks: process and connection of each."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._selector = listener, selectors.DefaultSelector()
        self._ranks: dict[int, socket.socket] = {}
        self._ends_s: float | None = None
        self._is_rank = False
        self._selector.register(listener, selectors.EVENT_READ, self._fork)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._close)

    def serve(self) -> bool:
        """Return True in a forked rank, and False when standard input has closed and all ranks have ended."""
        while self._ranks or self._ends_s is None:
            for key, _ in self._selector.select(None if self._ends_s is None else 1):
                key.data()
                if self._is_rank:
                    return True
            if self._ends_s is not None and time.monotonic() > self._ends_s:
                self._signal_all(signal.SIGKILL)
        return False

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        outputs: list[int] = []
        with suppress(OSError):  # The client has ended; or no process can be started, and the client tries it.
            _, outputs, _, _ = socket.recv_fds(connection, 1, 3)
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            client, user, _ = _CREDENTIALS.unpack(told)
            if len(outputs) == 3 and user == os.geteuid():  # noqa: PLR2004 (input, output, error)
                pid = os.fork()
                if not pid:
                    self._become_rank(client, outputs)
                    return
                self._follow(pid, connection)
                connection.send(b"\0")  # From here on, a rank is there.
        if connection not in self._ranks.values():
            connection.close()
        for each in outputs:
            os.close(each)

    def _follow(self, pid: int, connection: socket.socket) -> None:
        self._ranks[pid] = connection
        pidfd = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, partial(self._tell_the_end, pid, pidfd))
        self._selector.register(connection, selectors.EVENT_READ, partial(self._pass_on, pid))

    def _become_rank(self, client: int, outputs: Sequence[int]) -> None:
        """Take the variables and the outputs of what stands for this rank, and a session of its own."""
        self._is_rank = True
        self._selector.close()
        for connection in self._ranks.values():
            connection.close()
        os.setsid()
        variables = Path(f"/proc/{client}/environ").read_bytes().split(b"\0")
        os.environb.clear()
        os.environb.update(each.partition(b"=")[::2] for each in variables if each)
        for number, each in enumerate(outputs):
            os.dup2(each, number)
            os.close(each)
        guard_outputs()

    def _pass_on(self, pid: int) -> None:
        """Pass a signal on to a rank; kill the rank if what stands for it has ended."""
        if pid not in self._ranks:  # It has ended in the same moment.
            return
        number = b""
        with suppress(ConnectionError):
            number = self._ranks[pid].recv(1)
        if not number:
            self._selector.unregister(self._ranks[pid])
        os.kill(pid, number[0] if number else signal.SIGKILL)

    def _tell_the_end(self, pid: int, pidfd: int) -> None:
        code, connection = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), self._ranks.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with suppress(KeyError):  # Of a rank that was killed, it is unregistered.
            self._selector.unregister(connection)
        with suppress(OSError):
            connection.send(bytes([128 - code if code < 0 else code]))
        connection.close()

    def _close(self) -> None:
        """Let ranks that are left save their state and end, because the launcher has ended."""
        self._selector.unregister(sys.stdin.fileno())
        self._ends_s = time.monotonic() + _ORPHAN_S
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for pid in self._ranks:
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
