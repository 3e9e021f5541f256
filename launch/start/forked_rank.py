"""Stands for a forked rank under a launcher; see `train.forks`.

Started by its path and without site packages, because it has to start within milliseconds.
"""

import os
import signal
import socket
import sys
from contextlib import suppress


def main() -> int:
    """Have a rank forked, and return its exit status: 128 + n if signal n killed it.

    The arguments are the name of the socket, and the command of the rank. The command takes the place of this process
    where nobody forks ranks.
    """
    name, *command = sys.argv[1:]
    is_forked, status = False, b""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        is_forked = bool(connection.recv(1))
        status = connection.recv(1)
    if not is_forked:
        os.execv(command[0], command)
    return status[0] if status else 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main())
