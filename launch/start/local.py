"""Start the ranks of one machine: rendezvous, parameter servers, one process a rank; end all of them together.

``horovodrun`` starts ranks too, but it passes their output on line by line, which breaks progress bars, and takes
seconds to start and eleven to stop. Here the ranks share this terminal. A job script on one machine uses
``python -m launch.start.local [--kind KIND] [--servers N] RANKS COMMAND ...``, where KIND is a ``communication.kind``.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import REMAINDER
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from configs.arguments import Parser, exit_status, parse
from configs.errors import EARLY_STATUS, END_VARIABLE, STOPPED_STATUS, UserError
from configs.outputs import guard_outputs
from configs.programs import Program, command_of
from configs.rank_variables import server_environment
from configs.registry import COMMUNICATORS
from launch.start.inherited import without_ranks
from launch.start.launcher_signals import STOP_SIGNALS, forwarded_signals, signal_groups
from launch.start.rendezvous import rendezvous_of

_POLL_S = 0.05
GRACE_S = 8.0
"""Time for the other ranks to end by themselves after a rank failed: Horovod takes less to notice, and the whole end
stays below 30 s."""

KILL_S = 5.0
"""Time from SIGTERM to SIGKILL."""

LEAVE_S = 15.0
"""Time from SIGKILL until a process that is still there is left behind: the kernel may free its memory for seconds."""

STOP_S = 60.0
"""Time for the ranks to save their state when the launcher is told to stop; a scheduler may give less."""

CANNOT_SHAPE = (
    "the loopback cannot be shaped here: it needs root or user namespaces, unshare, ip, tc, and a kernel with token "
    "buckets (sch_tbf)"
)

_BURST_BYTES = 128 << 10
"""Bytes that the token bucket lets pass at once: two of the loopback's largest packets."""

_QUEUE_MS = 400

_SCRIPT = (
    "ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst {burst} latency {queue}ms || exit 71\n"
    'exec "$@"'
)

ABORTED_STATUS = 128 + signal.SIGABRT
"""Status of a rank that NCCL has aborted because another rank has ended, or that has aborted by itself."""


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        exit_status: 0, or the status of a failed rank: 128 + n if signal n killed it.
        failed: Rank and status of each rank that failed before the launcher ended any rank.
        frozen: The ranks that were stopped, as by SIGSTOP, when another one failed.
        interrupted_by: SIGINT if the user pressed Ctrl-C twice, so that the ranks were killed; or another signal that
            ended the launcher before its ranks could save their state.
        lost_server: Status of a parameter server that ended while ranks needed it.
        stopped_by: The signal by which the ranks were told to save their state and end, if there was one.
        ran_out_of_memory: Whether the kernel killed a process of the launcher's control groups meanwhile because memory
            ran out.
    """

    exit_status: int
    failed: tuple[tuple[int, int], ...] = ()
    interrupted_by: int | None = None
    lost_server: int | None = None
    stopped_by: int | None = None
    ran_out_of_memory: bool = False
    frozen: tuple[int, ...] = ()


def run_ranks(
    command: Sequence[str],
    num_ranks: int,
    variables: Mapping[str, str],
    *,
    kind: str = "horovod",
    servers: int = 0,
) -> Outcome:
    """Run ``command`` once for each rank on this machine and wait for all of them.

    A rank that fails ends the run: the others get `GRACE_S` to end by themselves, then SIGTERM, then SIGKILL. SIGTERM
    and SIGUSR1 to this process are passed on to the ranks, the first SIGINT as SIGTERM, the second as SIGKILL.

    Args:
        command: The command of a rank.
        num_ranks: Number of ranks.
        variables: Variables on top of this process's own.
        kind: The ``communication.kind`` of the ranks, by which they meet.
        servers: Number of parameter servers to start, with their scheduler.
    """
    base = {**without_ranks(), **variables}
    with (
        forwarded_signals() as last_signal,
        _parameter_servers(num_ranks, servers, base) as (helpers, addresses),
        rendezvous_of(kind).local_ranks(num_ranks) as start_of,
    ):
        ranks = [_started(command, {**base, **addresses}, start_of(rank)) for rank in range(num_ranks)]
        return _Supervisor(ranks, last_signal, helpers, GRACE_S).wait()


class _RankOfRun(subprocess.Popen[bytes]):
    """A rank of a run, whose status of 0 is no success; see `configs.errors.EARLY_STATUS`."""

    def poll(self) -> int | None:
        """Return the status, with 0 and `EARLY_STATUS` swapped."""
        code = super().poll()
        return EARLY_STATUS - code if code in (0, EARLY_STATUS) else code


def _started(command: Sequence[str], base: Mapping[str, str], own: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one rank, in a session of its own, so that Ctrl-C reaches the ranks once, through this process."""
    # A rank of a run under rank.sh, which begins the command of a rank of a GPU, has that script's parent look.
    is_judged = list(command[-3:-1]) == command_of(Program.RANK)[-2:] and not command[0].endswith(".sh")
    process, asked = (_RankOfRun, {END_VARIABLE: str(EARLY_STATUS)}) if is_judged else (subprocess.Popen, {})
    descriptors = [int(value) for name, value in own.items() if name.endswith("_FD")]
    return process(command, env={**base, **own, **asked}, pass_fds=descriptors, start_new_session=True)


def run_ranks_on_link(
    command: Sequence[str],
    num_ranks: int,
    variables: Mapping[str, str],
    *,
    bytes_per_s: float,
    kind: str = "horovod",
    servers: int = 0,
) -> Outcome:
    """Run ranks as `run_ranks` does, over a loopback on which each rank and each server sends ``bytes_per_s``.

    The ranks, their rendezvous and their servers live in a network namespace of their own, with a second launcher.
    All ranks of a ring send at the same time. With servers, as many ranks as there are servers fill the servers' links
    with gradients, while the servers send weights.

    Raises:
        UserError: This machine cannot limit the rate of a loopback.
    """
    if not can_shape():
        raise UserError(f"communication.link_bytes_per_s: {CANNOT_SHAPE}; leave the key out to use the plain loopback")
    words = ["--kind", kind, "--servers", str(servers), str(num_ranks)]
    inner = command_of(Program.LOCAL_LAUNCHER, *words, *command)
    senders = 2 * min(num_ranks, servers) if servers else num_ranks
    with forwarded_signals() as last_signal:
        launcher = subprocess.Popen(
            [*shaped(bytes_per_s, senders), *inner], env={**without_ranks(), **variables}, start_new_session=True
        )
        # The inner launcher needs all of its own grace period to end its ranks.
        outcome = _Supervisor([launcher], last_signal, (), 2 * GRACE_S).wait()
    return replace(outcome, failed=())  # The one process that failed there is the inner launcher.


def shaped(bytes_per_s: float, senders: int) -> list[str]:
    """Return the words that, put before a command line, run the command with a rate limit on the loopback.

    All processes of the command share the loopback. Processes that send at the same time, as the ranks of a ring do,
    get an equal part of the bucket's rate each; so that rate is ``senders`` times ``bytes_per_s``.

    This needs root or user namespaces, and ``unshare``, ``ip`` and ``tc``. The command ends with status 71 where the
    kernel has no token bucket.

    Args:
        bytes_per_s: The rate at which a process can send, in bytes per second, while it receives as much.
        senders: Number of processes that send at the same time.
    """
    script = _SCRIPT.format(rate=f"{8 * round(senders * bytes_per_s)}bit", burst=_BURST_BYTES, queue=_QUEUE_MS)
    own_user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", *own_user, "bash", "-c", script, "link"]


@functools.cache
def can_shape() -> bool:
    """Return whether the loopback can be shaped on this machine; it is tried once."""
    try:
        return subprocess.run([*shaped(1e8, senders=1), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def _parameter_servers(
    workers: int, servers: int, base: Mapping[str, str]
) -> Iterator[tuple[Sequence[subprocess.Popen[bytes]], Mapping[str, str]]]:
    """Run the scheduler and the parameter servers while the block runs.

    They end by themselves when the last rank has left; where a rank could not leave, they are killed.

    Yields:
        The processes, and the variables by which ranks find them. Without servers, both are empty.
    """
    if not servers:
        yield (), {}
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = command_of(Program.PARAMETER_SERVER)
    variables = functools.partial(server_environment, port=port, workers=workers, servers=servers)
    roles = [variables("scheduler"), *[variables("server")] * servers]
    started = [subprocess.Popen(command, start_new_session=True, env={**base, **role}) for role in roles]
    try:
        yield started, variables("worker")
    finally:
        signal_groups(started, signal.SIGKILL)
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)


@dataclass
class _Supervisor:
    """Waits for the ranks; after a failure, the loss of a server or a signal, it ends the ranks that are left.

    Each rank is the leader of its process group. ``failed`` has those that failed before any rank was signalled, and
    ``deadline_s`` is when the ranks get the next, stronger signal.
    """

    ranks: Sequence[subprocess.Popen[bytes]]
    last_signal: Callable[[], int | None]
    servers: Sequence[subprocess.Popen[bytes]]
    grace_s: float
    failed: dict[int, int] = field(default_factory=dict)
    frozen: tuple[int, ...] = ()
    lost_server: int | None = None
    is_ending: bool = False
    is_killing: bool = False
    deadline_s: float | None = None
    passed_on: int | None = None

    def wait(self) -> Outcome:
        """Return when all ranks have ended, and everything that they started; or when what is left cannot be killed."""
        try:
            while any(rank.poll() is None for rank in self.ranks):
                self._look_for_failures()
                self._pass_signal_on()
                if self.is_ending and self.deadline_s is None and any(rank.poll() is not None for rank in self.ranks):
                    self.deadline_s = time.monotonic() + STOP_S
                if self.deadline_s is not None and time.monotonic() > self.deadline_s:
                    if self.is_killing:
                        self._tell_of_those_left()
                        break
                    self._signal_ranks(signal.SIGKILL if self.is_ending else signal.SIGTERM, KILL_S)
                time.sleep(_POLL_S)
        finally:
            signal_groups(self.ranks, signal.SIGKILL)
        return self._outcome()

    def _look_for_failures(self) -> None:
        if self.last_signal() is None and not self.is_ending:
            self.failed = {number: _status(rank) for number, rank in enumerate(self.ranks) if rank.poll()}
        if self.failed and self.deadline_s is None:
            asked = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT  # A rank may end just now.
            running = [(number, rank.pid) for number, rank in enumerate(self.ranks) if rank.poll() is None]
            told = [(number, os.waitid(os.P_PID, pid, asked)) for number, pid in running]
            self.frozen = tuple(number for number, each in told if each and each.si_code == os.CLD_STOPPED)
            # A frozen rank goes on, so that it reports that it was frozen, and ends like the others.
            signal_groups(self.ranks, signal.SIGCONT)
            self.deadline_s = time.monotonic() + self.grace_s
        if not self.failed and self.lost_server is None:
            self.lost_server = next((_status(server) for server in self.servers if server.poll()), None)
        if self.lost_server is not None and not self.is_ending:
            self._signal_ranks(signal.SIGTERM, self.grace_s)

    def _pass_signal_on(self) -> None:
        received = self.last_signal()
        if received is not None and received != self.passed_on:
            self.passed_on = received
            # Whatever follows SIGKILL changes nothing.
            if not self.is_killing:
                self._signal_ranks(signal.SIGTERM if received == signal.SIGINT else received, STOP_S)
            if received == signal.SIGINT and not self.is_killing:
                # A step may take minutes, and the user is there to press Ctrl-C again.
                self.deadline_s = None

    def _signal_ranks(self, number: int, patience_s: float) -> None:
        signal_groups(self.ranks, number)
        self.is_ending, self.is_killing = True, number == signal.SIGKILL
        self.deadline_s = time.monotonic() + (LEAVE_S if self.is_killing else patience_s)

    def _tell_of_those_left(self) -> None:
        for number, rank in enumerate(self.ranks):
            if rank.poll() is None:
                what = f"rank {number} (process {rank.pid}) cannot be killed, and is left behind"
                why = "it is frozen, or waits in the kernel for a disk, a file server or a GPU"
                sys.stderr.write(f"warning: {what}: {why}; it ends when it goes on\n")

    def _outcome(self) -> Outcome:
        interrupted, statuses = self.last_signal(), {_status(rank) for rank in self.ranks}
        # A rank whose interpreter was still starting could not handle the signal, and was killed by it.
        sent = {0, STOPPED_STATUS, 128 + (signal.SIGTERM if interrupted == signal.SIGINT else interrupted or 0)}
        if interrupted in STOP_SIGNALS and statuses <= sent:
            stopped = 128 + signal.SIGINT if interrupted == signal.SIGINT else STOPPED_STATUS
            return Outcome(stopped if any(statuses) else 0, stopped_by=interrupted)
        if interrupted == signal.SIGINT or (interrupted in STOP_SIGNALS and 128 + signal.SIGKILL not in statuses):
            # A rank failed meanwhile; the ranks' reports tell which one.
            return Outcome(max(statuses - {STOPPED_STATUS}), stopped_by=interrupted)
        if interrupted:
            by = signal.SIGINT if interrupted == signal.SIGKILL else interrupted
            return Outcome(128 + by, interrupted_by=by)
        if self.lost_server is not None:
            return Outcome(self.lost_server, lost_server=self.lost_server)
        if not self.is_ending:
            self.failed = {number: _status(rank) for number, rank in enumerate(self.ranks) if rank.poll()}
        # A rank that a signal killed is a likelier cause than a rank that exited with a status or was told to stop. But
        # NCCL aborts ranks whose peers have ended.
        worst = max(
            self.failed.values(), key=lambda status: (status not in (STOPPED_STATUS, ABORTED_STATUS), status), default=0
        )
        return Outcome(worst, tuple(self.failed.items()), frozen=self.frozen)


def _status(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process: 128 + n if signal n killed it, or is to kill it when it goes on."""
    code = process.poll()
    if code is None:
        return 128 + signal.SIGKILL
    return 128 - code if code < 0 else code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks of a job and return their exit status."""
    parser = Parser(prog="python -m launch.start.local", description=__doc__)
    parser.add_argument("--kind", default="horovod", choices=COMMUNICATORS, help="communication.kind of the ranks")
    parser.add_argument("--servers", type=int, default=0, help="number of parameter servers")
    parser.add_argument("num_ranks", type=int, help="number of ranks")
    parser.add_argument("command", nargs=REMAINDER, help="the command of a rank")
    parser.set_defaults(variables={})
    return exit_status(lambda: parse(parser, run_ranks, arguments).exit_status)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
