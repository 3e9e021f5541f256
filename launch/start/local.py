"""Start the ranks of one machine: rendezvous, parameter servers, one process a rank, none left behind.

``horovodrun`` does the same, but draws its output through pipes line by line (no progress bar), takes seconds to
start and eleven to stop; here the ranks share this terminal and end together. A job script on one machine does it
by ``python -m launch.start.local [--servers N] RANKS COMMAND ...``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

from configs.errors import STOPPED_STATUS
from configs.programs import Program, command_of
from configs.rank_variables import server_environment
from launch.start.link import require_link, shaped
from launch.start.rendezvous import serve_rendezvous

__all__ = ["Outcome", "forwarded_signals", "main", "run_ranks", "run_ranks_on_link"]

_POLL_S = 0.05
GRACE_S = 8.0
"""What the others get to end by themselves after one rank died: above Horovod's own notice, below 30 s in all."""

KILL_S = 5.0
"""From SIGTERM to SIGKILL."""

STOP_S = 60.0
"""What ranks get to keep their state when the launcher is told to stop; a scheduler may give less."""

_POLITE = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        exit_status: 0, or that of a failed rank (128 + n where signal n killed it).
        failed: Rank and status of each that failed by itself, before anybody was told to end.
        interrupted_by: The signal that stopped the launcher itself, if one did.
        lost_server: Status of a parameter server that ended while ranks needed it.
    """

    exit_status: int
    failed: tuple[tuple[int, int], ...] = ()
    interrupted_by: int | None = None
    lost_server: int | None = None


def run_ranks(
    command: Sequence[str], num_ranks: int, environment: Mapping[str, str], *, servers: int = 0
) -> Outcome:  # fmt: skip
    """Run ``command`` once a rank on this machine and wait for all of them.

    A rank that fails ends the run: the others get `GRACE_S` to notice, then SIGTERM, then SIGKILL. SIGINT, SIGTERM
    and SIGUSR1 to this process are passed on to the ranks.

    Args:
        command: What a rank runs.
        num_ranks: How often.
        environment: Variables on top of this process's own.
        servers: Parameter servers to start beside the ranks, with their scheduler.
    """
    with serve_rendezvous(1, num_ranks) as port, forwarded_signals() as signals:
        base = {
            **os.environ,
            **environment,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_HOSTNAME": "node0",
            "HOROVOD_SIZE": str(num_ranks),
            "HOROVOD_LOCAL_SIZE": str(num_ranks),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
        }
        with _parameter_servers(num_ranks, servers, base) as (helpers, ours):
            ranks = [
                subprocess.Popen(
                    command,
                    env={**base, **ours, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)},
                    # A group of its own, so that Ctrl-C reaches the ranks once, through us.
                    start_new_session=True,
                )
                for rank in range(num_ranks)
            ]
            return _supervise(ranks, signals, helpers)


def run_ranks_on_link(
    command: Sequence[str], num_ranks: int, environment: Mapping[str, str], *, bytes_per_s: float, servers: int = 0
) -> Outcome:  # fmt: skip
    """Run ranks as `run_ranks` does, over a loopback on which each sends at most ``bytes_per_s``.

    They, their rendezvous and their servers live in a network of their own, and a second launcher in it with them.

    Raises:
        UserError: This machine cannot shape a loopback.
    """
    require_link()
    inner = command_of(Program.LOCAL_LAUNCHER, "--servers", str(servers), str(num_ranks), *command)
    with forwarded_signals() as signals:
        launcher = subprocess.Popen(
            [*shaped(bytes_per_s), *inner], env={**os.environ, **environment}, start_new_session=True
        )
        # The inner launcher needs all of its grace to end its ranks.
        outcome = _supervise([launcher], signals, grace_s=2 * GRACE_S)
    return Outcome(outcome.exit_status, interrupted_by=outcome.interrupted_by)


@contextmanager
def _parameter_servers(
    workers: int, servers: int, base: Mapping[str, str]
) -> Iterator[tuple[Sequence[subprocess.Popen[bytes]], Mapping[str, str]]]:
    """Run scheduler and servers while the block runs; gives them, and the variables by which ranks find them.

    They end by themselves when the last rank has taken its leave, and are ended where one could not.
    """
    if not servers:
        yield (), {}
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = command_of(Program.PARAMETER_SERVER)
    variables = partial(server_environment, port=port, workers=workers, servers=servers)
    roles = [variables("scheduler"), *[variables("server")] * servers]
    started = [subprocess.Popen(command, start_new_session=True, env={**base, **role}) for role in roles]
    try:
        yield started, variables("worker")
    finally:
        _send(started, signal.SIGKILL)
        for process in started:
            process.wait()


@contextmanager
def forwarded_signals() -> Iterator[Callable[[], int | None]]:
    """Note signals instead of dying of them; gives a function that tells which came last."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, *_POLITE)}
    try:
        yield lambda: received[-1] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(
    ranks: Sequence[subprocess.Popen[bytes]], signals: Callable[[], int | None],
    servers: Sequence[subprocess.Popen[bytes]] = (), grace_s: float | None = None,
) -> Outcome:  # fmt: skip
    """Wait until all ranks are gone; after the first failure, a lost server or a signal, see that they go."""
    grace_s = GRACE_S if grace_s is None else grace_s
    failed: dict[int, int] = {}
    lost: int | None = None
    deadline: float | None = None
    told, passed_on = False, None
    try:
        while any(rank.poll() is None for rank in ranks):
            if signals() is None and not told:
                failed = {number: _status(rank) for number, rank in enumerate(ranks) if rank.poll()}
            if not failed and lost is None:
                lost = next((_status(server) for server in servers if server.poll()), None)
            if lost is not None and not told:
                _send(ranks, signal.SIGTERM)
                told, deadline = True, time.monotonic() + grace_s
            if signals() not in (None, passed_on):
                passed_on = signals()
                assert passed_on is not None
                _send(ranks, passed_on)
                told, deadline = True, time.monotonic() + (STOP_S if passed_on in _POLITE else grace_s)
            if failed and deadline is None:
                deadline = time.monotonic() + grace_s
            if deadline is not None and time.monotonic() > deadline:
                _send(ranks, signal.SIGKILL if told else signal.SIGTERM)
                told, deadline = True, time.monotonic() + KILL_S
            time.sleep(_POLL_S)
    finally:
        _send(ranks, signal.SIGKILL)
    interrupted, statuses = signals(), {_status(rank) for rank in ranks}
    if interrupted in _POLITE and statuses <= {0, STOPPED_STATUS}:
        return Outcome(max(statuses))
    if interrupted:
        return Outcome(128 + interrupted, interrupted_by=interrupted)
    if lost is not None:
        return Outcome(lost, lost_server=lost)
    if not told:
        failed = {number: _status(rank) for number, rank in enumerate(ranks) if rank.returncode}
    # A rank that a signal killed is the likelier cause than one that ended with a status, or was told to stop.
    worst = max(failed.values(), key=lambda status: (status != STOPPED_STATUS, status), default=0)
    return Outcome(worst, tuple(failed.items()))


def _status(rank: subprocess.Popen[bytes]) -> int:
    code = rank.wait()
    return 128 - code if code < 0 else code


def _send(ranks: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Signal each rank's whole group, so that nothing it started stays behind."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks of a job; gives their exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    servers = 0
    if words[:1] == ["--servers"]:
        servers, words = int(words[1]), words[2:]
    num_ranks, *command = words
    return run_ranks(command, int(num_ranks), {}, servers=servers).exit_status


if __name__ == "__main__":
    sys.exit(main())
