"""Checks, before ranks are started over ssh, that the hosts of a job reach each other; one line for what is in the way.

``python -m launch.submit.reach FOLDER HOST ...`` runs on the first host, from the job script. On every other host it
starts ``reach --answer``, which connects back and lets itself be connected to, each at a free port: launchers and ranks
use any. Without this check, a launcher waits for minutes or for ever. Imports the standard library only, besides
`configs`.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from configs.programs import Program, command_of

_CONNECT_S = 6.0
_SSH_S = 8
ANSWER_S, _LATE_STATUS = 60, 124
"""Time in which a host answers by ssh, whose own limit ends before keys are exchanged; the status of ``timeout``."""

_IN_WAY = "launchers and ranks use any port: allow connections between the hosts of a job on all ports"


def trouble_with(host: str, folder: Path) -> str | None:
    """Return in one line why a host cannot take part in a job that begins here, or None if it can.

    Args:
        host: Its name or address.
        folder: A run folder, which all hosts must see.
    """
    here = socket.gethostname()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return f"{host}: the name cannot be resolved on {here}: add it to /etc/hosts or to the name server"
    addresses = sorted({(family, str(address[0])) for family, _, _, _, address in found})
    if any(_is_here(*each) for each in addresses):
        return None
    with _listening() as server:
        words = command_of(Program.REACH, "--answer", str(server.getsockname()[1]), str(folder))
        ssh = f"timeout {ANSWER_S} ssh -o BatchMode=yes -o ConnectTimeout={_SSH_S}".split()
        ssh += [host, shlex.join(words)]
        # Without a buffer, in which `communicate` would not find what follows the first line.
        with subprocess.Popen(
            ssh, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as remote:
            assert remote.stdout is not None
            # The host's own shell may print a greeting first.
            said = next((line.split() for line in remote.stdout if line.startswith(b"port ")), None)
            forth = _why_not(addresses[0][1], int(said[1])) if said else None
            output, errors = remote.communicate()
    if not said:
        lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
        late = f"no answer within {ANSWER_S:g} s, as where a link loses large packets (its MTU)"
        reason = late if remote.returncode == _LATE_STATUS else (lines or ["no output"])[-1].rstrip(".")
        where = f"ssh {host} must work from {here} without a prompt"
        return f"{host}: {reason}; {where}, and find this program there in the same folder"
    if forth:
        return f"{host}: {here} cannot connect to {addresses[0][1]}: {forth}; {_IN_WAY}"
    back = output.decode().strip()
    return f"{host}: {back}; {_IN_WAY}" if back else None


def leads_here(host: str) -> bool:
    """Return whether a name or an address is one of this machine's own."""
    with suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return any(_is_here(family, str(address[0])) for family, _, _, _, address in found)
    return False


def _is_here(family: int, address: str) -> bool:
    """Return whether an address is one of this machine's own: only such can be bound to."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _listening() -> socket.socket:
    """Return a server at a free port of every address, also of IPv6 where this machine has it."""
    is_dual = socket.has_dualstack_ipv6()
    server = socket.create_server(
        ("", 0), family=socket.AF_INET6 if is_dual else socket.AF_INET, dualstack_ipv6=is_dual
    )
    server.settimeout(_CONNECT_S)
    return server


def _why_not(address: str, port: int) -> str | None:
    """Return why no connection can be opened, or None if one can."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _answer(port: int, folder: Path) -> int:
    """Print the port at which this host can be reached, connect back, and print what is in the way, if anything is."""
    if not folder.is_dir():
        sys.stderr.write(f"{folder} is not there: put the runs on a file system that all hosts share (paths.runs)\n")
        return 1
    # sshd says from where the connection came.
    origin = os.environ["SSH_CONNECTION"].split()[0]
    with _listening() as server:
        sys.stdout.write(f"port {server.getsockname()[1]}\n")
        sys.stdout.flush()
        if reason := _why_not(origin, port):
            sys.stdout.write(f"{socket.gethostname()} cannot connect to {origin}: {reason}\n")
        with suppress(OSError):  # The other side says so if it cannot connect.
            server.accept()[0].close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the hosts that can take part, one a line, and an error for each other one; return 0, or 2 with errors."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[0] == "--answer":
        return _answer(int(words[1]), Path(words[2]))
    folder, hosts = Path(words[0]), words[1:]
    with ThreadPoolExecutor(len(hosts)) as pool:
        troubles = list(pool.map(lambda host: trouble_with(host, folder), hosts))
    for host, trouble in zip(hosts, troubles, strict=True):
        if trouble:
            sys.stderr.write(f"error: {trouble}\n")
        else:
            sys.stdout.write(f"{host}\n")
    return 2 if any(troubles) else 0


if __name__ == "__main__":
    sys.exit(main())
