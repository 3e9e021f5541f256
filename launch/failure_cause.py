"""Find out why a run failed: rank, host and step, from the ranks' failure reports and the launcher's outcome."""

import contextlib
import json
import re
import resource
import shlex
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from configs.errors import EARLY_STATUS, REFUSED_STATUS, STOPPED_STATUS
from configs.load import resolve_path
from configs.machine_limits import memory_limit
from configs.reading import Unreadable, is_file
from launch.start.local import ABORTED_STATUS, STOP_S, Outcome
from logs.disk import found_object
from logs.folder import STARTUP_FILE, RunFolder
from logs.metrics import METRICS_FILE

_REPORT: dict[str, Any] = {
    "rank": int, "host": str, "step": int | None, "message": str, "second_hand": bool, "status": int,
    "time": int | float,
}  # fmt: skip
"""Keys and types of a failure report; another file of that name is none."""

_PROCESS_LIMIT = re.compile("can't start new thread|unable to start watchdog thread|Resource temporarily unavailable")
"""Words of a rank's error that tell of the limit of its user or job."""

_LOST_DAEMON = 205
"""Exit status of Open MPI's mpirun when its daemon on another host is gone (4.1.4, tried by killing the host)."""

_STOOD_STILL_STATUS = 128 + signal.SIGALRM
"""Status of a rank that the kernel ended for its watchdog, because the rank was frozen or stuck outside of Python."""

_SIGNAL_STATUSES = range(129, 193)
"""Exit statuses of processes that signals 1 to 64 killed: a shell reports signal n as 128 + n."""


@dataclass(frozen=True)
class Ending:
    """How the ranks of a run ended.

    Attributes:
        folder: The run folder.
        outcome: How the launcher ended.
        reports: The failure reports: one from each rank that failed and could still write it whole.
    """

    folder: RunFolder
    outcome: Outcome
    reports: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, folder: RunFolder, outcome: Outcome) -> "Ending":
        """Return the ending of a run with the reports that are in its folder and can be read."""
        reports = []
        for rank in range(folder.cluster.world_size):
            with contextlib.suppress(Unreadable):
                report = found_object(folder / f"failure_{rank}.json")
                if all(isinstance(report.get(key, report), kind) for key, kind in _REPORT.items()):
                    reports.append(report)
        return cls(folder, outcome, reports)

    @cached_property
    def cause(self) -> Mapping[str, Any]:
        """The first failure, by the first row of `_CAUSES` that holds.

        A mapping with ``message`` and, where they are known, ``rank``, ``host`` and ``step``.
        """
        told = next(tells(self) for holds, tells in _CAUSES if holds(self))
        return {"message": told} if isinstance(told, str) else told

    @cached_property
    def kill(self) -> Mapping[str, Any]:
        """The cause, if it is that a signal killed a rank; or empty."""
        number = self.own.get("killed_by") or (self.silent and self.silent[2])
        return self.cause if number and number > 0 else {}

    @cached_property
    def was_stopped(self) -> bool:
        """Whether the run ended because it was told to stop, and nothing else went wrong.

        Launchers replace the ranks' exit statuses by one of their own, srun by the largest, and they tell the other
        ranks to stop when a rank fails. So a status counts for nothing here. Somebody told the run to stop if the
        launcher was signalled, if the ranks agreed to stop (the checkpoint is then on disk), or if every rank reports
        a signal of its own. A rank may fail with a report of its own meanwhile, and then the run has failed.
        """
        if not self.outcome.exit_status or self.own:
            return False
        stopped = [report for report in self.reports if report["status"] == STOPPED_STATUS]
        if any(not report["second_hand"] for report in stopped):
            return True
        if self.outcome.stopped_by is None:
            return len(stopped) == len(self.reports) == self.folder.cluster.world_size
        # Without a step, the run had not begun: there was no state to save. Ranks that were killed have no reports.
        is_early = all(report in stopped or report["step"] is None for report in self.reports)
        return is_early and not self.has_refused

    @cached_property
    def has_refused(self) -> bool:
        """Whether the first thing that went wrong is that a rank refused to begin the run."""
        if self.own:
            return bool(self.own["status"] == REFUSED_STATUS)
        return not self.reports and self.outcome.exit_status == REFUSED_STATUS

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """The earliest report of a failure that no other rank caused, an error of the rank or a kill; or empty.

        NCCL aborts ranks whose peers have ended, so an abort counts only where nothing else is reported.
        """
        own = [
            report
            for report in self.reports
            if "killed_by" in report or (not report["second_hand"] and report["status"] != STOPPED_STATUS)
        ]
        return min(own, key=lambda report: (report["status"] == ABORTED_STATUS, report["time"]), default={})

    @cached_property
    def stop(self) -> Mapping[str, Any]:
        """What a rank tells that saved its state, or that was told to stop by something else than the launcher."""
        told = next((report for report in self.reports if report["status"] == STOPPED_STATUS), None)
        if told is None or (told["step"] is None and self.outcome.stopped_by is not None):
            return {}
        return {"step": told["step"], "message": told["message"]}

    @cached_property
    def step(self) -> tuple[int | None, str]:
        """About the step at which a rank ended, and a phrase that tells the step.

        The step is the smallest one that other ranks reported, or else the last one in the run's metrics.
        """
        reported = [report["step"] for report in self.reports if report["step"] is not None]
        if reported:
            return min(reported), f" at or before step {min(reported)}"
        if not is_file(self.folder / STARTUP_FILE):
            return None, ""
        step = 0
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            lines = (self.folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
            step = int(json.loads(lines[-1])["step"])
        return step, f" at or after step {step}"

    @cached_property
    def silent(self) -> tuple[int, str, int | None] | None:
        """A rank without a report, its end, and the signal: the launcher saw it fail, or others waited for it."""
        reporting = {report["rank"] for report in self.reports}
        ended = [(rank, status) for rank, status in self.outcome.failed if rank not in reporting]
        # The largest status is that of a signal, if there is one. A rank that only echoes a failure ends with 1.
        for rank, status in sorted(ended, key=lambda each: (each[1] == ABORTED_STATUS, -each[1]))[:1]:
            return rank, _ending(status), status - 128
        # A launcher that ends a frozen rank lets it run for a moment, in which it may still report that a signal
        # stopped it. Of ranks that all report, the one counts that was told to stop while others had waited.
        has_waited = any(report.get("waited") for report in self.reports)
        told = [report["rank"] for report in self.reports if has_waited and report["status"] == STOPPED_STATUS]
        suspects = sorted({*range(self.folder.cluster.world_size)} - reporting) or sorted(told)
        if not self.reports or not suspects:
            return None
        # A launcher tells the other ranks to stop when a rank has ended, so these reports are no sign of a frozen rank.
        has_ended = all(report["status"] == STOPPED_STATUS for report in self.reports)
        return suspects[0], f"{'ended' if has_ended else 'made no progress'} and reported nothing", None

    @cached_property
    def hindmost(self) -> Mapping[str, Any]:
        """The report of the only rank that stands at an earlier step than all others, and waits; or empty."""
        by_step = sorted((each for each in self.reports if each["step"] is not None), key=lambda each: each["step"])
        is_behind = len(by_step) > 1 and by_step[0]["step"] < by_step[1]["step"] and by_step[0].get("waited")
        return by_step[0] if is_behind else {}


_Told = str | Mapping[str, Any]
"""A message, or a message with rank, host and step."""


def _of_rank(report: Mapping[str, Any], step: int | None, words: str) -> _Told:
    rank, host = report["rank"], report["host"]
    return {"rank": rank, "host": host, "step": step, "message": f"rank {rank} on {host} {words}"}


def _tell_kill(its: Ending) -> _Told:
    # The script that started the rank counts the kills of its own machine; see `supervise_rank.sh`.
    is_out_of_memory = its.own.get("ran_out_of_memory", its.outcome.ran_out_of_memory)
    step, when = its.step
    why = _why(its.folder, its.own["killed_by"], is_out_of_memory)
    return _of_rank(its.own, step, its.own["message"] + when + why)


def _tell_silence(its: Ending) -> _Told:
    assert its.silent is not None
    (rank, ending, number), (step, when) = its.silent, its.step
    why = _why(its.folder, number, its.outcome.ran_out_of_memory)
    return _of_rank({"rank": rank, "host": _host_of(its.folder, rank)}, step, ending + when + why)


def _tell_error(its: Ending) -> _Told:
    """Tell the error of a rank; the step of the other ranks is used where the rank reports none.

    If the error is a comparison of the ranks, the odd one out has failed, and not the rank that reports first.
    """
    report, message = its.own, its.own["message"]
    step, when = its.step if report["step"] is None else (report["step"], _at(report["step"]))
    is_limit = _PROCESS_LIMIT.search(message) is not None
    remedy = "; raise the limit on processes and threads (ulimit -u, or pids.max of the control group)" * is_limit
    suspects = report.get("suspects")
    if isinstance(suspects, list) and not 0 < len(suspects) < max(2, its.folder.cluster.world_size):
        return {"step": step, "message": f"the ranks failed{when}: {message}{remedy}"}
    if suspects and report["rank"] not in suspects:
        rank = suspects[0]
        host = next((each["host"] for each in its.reports if each["rank"] == rank), None) or _host_of(its.folder, rank)
        report = {"rank": rank, "host": host}
    return _of_rank(report, step, f"failed{when}: {message}{remedy}")


def _tell_waiting(its: Ending) -> _Told:
    """Tell of ranks that all waited: for the one that is behind the others, if there is one."""
    if its.hindmost:
        step, message = its.hindmost["step"], its.hindmost["message"]
        words = f"made no progress{_at(step)}, while all others waited at later steps: {message}"
        return _of_rank(its.hindmost, step, words)
    first = min(its.reports, key=lambda report: report["time"])
    words = f"every rank waited for another{_at(its.step[0])}; rank {first['rank']}: {first['message']}"
    return {"step": its.step[0], "message": words}


def _tell_launcher(its: Ending) -> _Told:
    launcher, status = its.folder.cluster.launcher, its.outcome.exit_status
    # The status of srun is that of a rank, and of another launcher its own: who was killed has said nothing.
    is_mute = launcher == "local" or (launcher != "srun" and status in _SIGNAL_STATUSES)
    where = "" if is_mute else f"; {launcher}'s own lines say why"
    return f"the launcher ended with status {status}{where}"


_CAUSES: Sequence[tuple[Callable[[Ending], object], Callable[[Ending], _Told]]] = (
    (
        lambda its: its.outcome.lost_server is not None and not its.outcome.interrupted_by,
        lambda its: f"a parameter server ended with status {its.outcome.lost_server} before the ranks did",
    ),
    (lambda its: its.outcome.interrupted_by == signal.SIGINT, lambda _: "ended at once by a second Ctrl-C"),
    (
        lambda its: its.outcome.interrupted_by,
        lambda its: (
            f"told to stop by {_name(its.outcome.interrupted_by)}, but the state was not saved within {STOP_S:.0f} s"
        ),
    ),
    (lambda its: its.was_stopped, lambda its: its.stop or f"stopped by {_name(its.outcome.stopped_by)}"),
    (lambda its: "killed_by" in its.own, _tell_kill),
    (
        lambda its: its.own.get("status") == REFUSED_STATUS,
        lambda its: _of_rank(its.own, its.own["step"], f"refused to start: {its.own['message']}"),
    ),
    (lambda its: its.own, _tell_error),
    (lambda its: its.silent, _tell_silence),
    (lambda its: its.reports, _tell_waiting),
    (lambda its: its.has_refused, lambda _: "the ranks refused to start"),
    (
        lambda its: its.outcome.exit_status == _LOST_DAEMON,
        lambda _: f"the launcher ended with status {_LOST_DAEMON}; mpirun has lost a host, or the network to it",
    ),
    (lambda _: True, _tell_launcher),
)
"""The causes of a run's end in their order: when a cause holds, and what it tells."""


def _name(number: int | None) -> str:
    """Return how a user knows a signal."""
    assert number is not None
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _ending(status: int) -> str:
    if status == EARLY_STATUS:
        return "ended with status 0 before the run was over"
    if status == _STOOD_STILL_STATUS:
        return "was ended by SIGALRM, by which its watchdog ends a rank that stands still"
    return f"was killed by signal {status - 128}" if status in _SIGNAL_STATUSES else f"ended with status {status}"


def _why(folder: RunFolder, killed_by: int | None, is_out_of_memory: bool | str) -> str:
    """Return what the signal that killed a rank tells of the data, or of the rank's machine."""
    has_time_limit, has_memory_limit = (
        resource.getrlimit(each) != (resource.RLIM_INFINITY,) * 2 for each in (resource.RLIMIT_CPU, resource.RLIMIT_AS)
    )
    # The kernel sends SIGKILL where memory runs out, and counts that; also at the hard limit on processor time, as
    # SIGXCPU at the soft one.
    if killed_by == signal.SIGKILL and is_out_of_memory:
        return _memory_ran_out(is_out_of_memory)
    if has_memory_limit and killed_by in (signal.SIGSEGV, signal.SIGABRT):
        return ": perhaps a library got no memory; raise the limit (ulimit -v)"
    if killed_by == signal.SIGABRT:
        return ": perhaps a library gave up, which prints why"
    if killed_by == signal.SIGXCPU or (killed_by == signal.SIGKILL and has_time_limit):
        return ": perhaps its processor time was used up; raise the limit (ulimit -t)"
    # SIGBUS answers to a file that was cut short after the rank had mapped it. DALI reads beyond its memory where a
    # record's length is too long, and DALI 2.4 crashed in one of four processes that met an image which cannot be
    # decoded.
    if killed_by not in (signal.SIGSEGV, signal.SIGBUS) or folder.recipe.data.source == "synthetic":
        return ""
    full = "/dev/shm is full, or " if killed_by == signal.SIGBUS else ""
    place = resolve_path(folder.cluster.paths.data) / folder.recipe.data.name
    verify = f"./run.sh prepare --verify {shlex.quote(str(place))}"
    return f": perhaps {full}a file of the data set is damaged or was changed during the run; {verify} names it"


def _memory_ran_out(group: bool | str) -> str:
    """Return why the kernel killed a rank: ``group`` is the control group as the rank's own script described it."""
    limit = memory_limit()
    if isinstance(group, bool) and limit is not None:
        group = f"{limit.group}, limit {limit.limit_bytes / 1e9:.2f} GB"
    where = f" ({group})" if isinstance(group, str) else ""
    remedy = "raise the limit, start fewer ranks, or take smaller batches; ./run.sh plan lists the memory"
    return f": the kernel killed it because memory ran out{where}; {remedy}"


def _host_of(folder: RunFolder, rank: int) -> str:
    """Return the host of a rank, which ``supervise_rank.sh`` has written down."""
    if folder.cluster.launcher == "local":
        return socket.gethostname()
    with contextlib.suppress(OSError, ValueError, LookupError):
        lines = (folder / "ranks.txt").read_text(encoding="utf-8").splitlines()
        return dict(line.split(" ", 1) for line in lines)[str(rank)]
    return "an unknown host"
