"""Find out why a run failed: rank, host and step, from the ranks' failure reports and the launcher's outcome."""

import contextlib
import json
import resource
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import REFUSED_STATUS, STOPPED_STATUS, UserError
from configs.load import resolve_path
from configs.machine_limits import memory_limit
from configs.reading import entries, is_file
from data.recordio import find_wrong_length
from launch.start.local import ABORTED_STATUS, STOP_S, Outcome
from logs.disk import found_object, read_object
from logs.environment import ENVIRONMENT_FILE
from logs.folder import STARTUP_FILE, RunFolder
from logs.metrics import METRICS_FILE

_REPORT: dict[str, Any] = {
    "rank": int, "host": str, "step": int | None, "message": str, "second_hand": bool, "status": int,
    "time": int | float,
}  # fmt: skip
"""Keys and types of a failure report; another file of that name is none."""

_PROCESSES = "raise the limit on processes and threads (ulimit -u, or pids.max of the control group)"
_LIMITS = {
    "failed to map segment": "raise the limit on the memory of a process (ulimit -v)",
    "can't start new thread": _PROCESSES,
    "unable to start watchdog thread": _PROCESSES,
    "Resource temporarily unavailable": _PROCESSES,
}
"""Words of a rank's error that tell of a limit of its user or job, and what to do."""

_LOST_DAEMON = 205
"""Exit status of Open MPI's mpirun when its daemon on another host is gone (4.1.4, tried by killing the host)."""

_STOOD_STILL_STATUS = 128 + signal.SIGALRM
"""Status of a rank that the kernel ended for its watchdog, because the rank was frozen or stuck outside of Python."""

_LOOK_S = 20.0
"""How long to look for a damaged record after a crash, in each file."""

_SIGNAL_STATUSES = range(129, 193)
"""Exit statuses of processes that signals 1 to 64 killed: a shell reports signal n as 128 + n."""


def read_failures(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the failure reports of a run: one from each rank that failed and could still write it whole."""
    reports = map(found_object, (each for each in entries(folder.path) if each.match("failure_*.json")))
    return [each for each in reports if all(isinstance(each.get(key, each), kind) for key, kind in _REPORT.items())]


def find_cause(folder: RunFolder, outcome: Outcome, reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first failure of a run.

    In this order: a rank that reported an error of its own; a rank that was killed, or ended without a report; a rank
    without a report while others waited for it.

    Args:
        folder: The run folder.
        outcome: How the launcher ended.
        reports: The failure reports, from `read_failures`.

    Returns:
        A mapping with ``message`` and, where they are known, ``rank``, ``host`` and ``step``.
    """
    if outcome.lost_server is not None and not outcome.interrupted_by:
        return {"message": f"a parameter server ended with status {outcome.lost_server} before the ranks did"}
    if outcome.interrupted_by or was_stopped(outcome, reports, folder.cluster.world_size):
        return _stop_of(outcome, reports)
    steps = {report["rank"]: report["step"] for report in reports}
    step, when = _last_known_step(folder, steps.values())
    if first := _first_of_its_own(reports):
        return _reported_failure(first, step, when, folder, outcome)
    ended = sorted(outcome.failed, key=lambda each: each[1] == ABORTED_STATUS)
    silent = [(rank, _ending(status)) for rank, status in ended if rank not in steps]
    if not silent and reports:
        suspects = _without_progress(folder.cluster.world_size, reports)
        # A launcher tells the other ranks to stop when a rank has ended, so these reports are no sign of a frozen rank.
        has_ended = all(report["status"] == STOPPED_STATUS for report in reports)
        ending = "ended" if has_ended else "made no progress"
        silent = [(rank, f"{ending} and reported nothing") for rank in suspects]
    if silent:
        rank, ending = silent[0]
        host, why = _host_of(folder, rank), _why(folder, ending, outcome.ran_out_of_memory)
        return {"rank": rank, "host": host, "step": step, "message": f"rank {rank} on {host} {ending}{when}{why}"}
    if reports:
        first = min(reports, key=lambda report: report["time"])
        message = f"every rank waited for another{_at(step)}; rank {first['rank']}: {first['message']}"
        return {**first, "message": message}
    if has_refused(outcome, reports):
        message = "the ranks refused to start"
    else:
        lost = "; mpirun has lost a host, or the network to it" if outcome.exit_status == _LOST_DAEMON else ""
        message = f"the launcher ended with status {outcome.exit_status}{lost}"
    return {"message": message}


def _stop_of(outcome: Outcome, reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return how a run was told to stop, with the step after which the ranks saved its state."""
    if outcome.interrupted_by == signal.SIGINT:
        return {"message": "ended at once by a second Ctrl-C"}
    if outcome.interrupted_by:
        by = signal.Signals(outcome.interrupted_by).name
        return {"message": f"told to stop by {by}, but the state was not saved within {STOP_S:.0f} s"}
    told = next((report for report in reports if report["status"] == STOPPED_STATUS), None)
    if told and (told["step"] is not None or outcome.stopped_by is None):
        return {"step": told["step"], "message": told["message"]}
    assert outcome.stopped_by is not None, "else a rank has told why"
    by = "Ctrl-C" if outcome.stopped_by == signal.SIGINT else signal.Signals(outcome.stopped_by).name
    return {"message": f"stopped by {by}"}


def was_stopped(outcome: Outcome, reports: Sequence[Mapping[str, Any]], world_size: int) -> bool:
    """Return whether a run ended because it was told to stop, and nothing else went wrong.

    Launchers replace the ranks' exit statuses by one of their own, srun by the largest, and they tell the other ranks
    to stop when a rank fails. So a status counts for nothing here. Somebody told the run to stop if the launcher was
    signalled, if the ranks agreed to stop (the checkpoint is then on disk), or if every rank reports a signal of its
    own. A rank may fail with a report of its own meanwhile, and then the run has failed.
    """
    if not outcome.exit_status or _first_of_its_own(reports):
        return False
    stopped = [report for report in reports if report["status"] == STOPPED_STATUS]
    if any(not report["second_hand"] for report in stopped):
        return True
    if outcome.stopped_by is None:
        return len(stopped) == len(reports) == world_size
    # Without a step, the run had not begun: there was no state to save. Ranks that were killed have no reports.
    is_early = all(report in stopped or report["step"] is None for report in reports)
    return is_early and not has_refused(outcome, reports)


def has_refused(outcome: Outcome, reports: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the first thing that went wrong is that a rank refused to begin the run."""
    first = _first_of_its_own(reports)
    return first["status"] == REFUSED_STATUS if first else not reports and outcome.exit_status == REFUSED_STATUS


def _first_of_its_own(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the earliest report of a failure that no other rank caused: an error of the rank, or a kill.

    NCCL aborts ranks whose peers have ended, so an abort counts only where nothing else is reported.
    """
    own = [
        report
        for report in reports
        if "killed_by" in report or (not report["second_hand"] and report["status"] != STOPPED_STATUS)
    ]
    return min(own, key=lambda report: (report["status"] == ABORTED_STATUS, report["time"]), default=None)


def _reported_failure(
    report: Mapping[str, Any], step: int | None, when: str, folder: RunFolder, outcome: Outcome
) -> Mapping[str, Any]:
    """Return the failure of one report; the step of the other ranks is used where the report has none."""
    rank = f"rank {report['rank']} on {report['host']}"
    if "killed_by" in report:
        # The script that started the rank counts the kills of its own machine; see `supervise_rank.sh`.
        is_out_of_memory = report.get("ran_out_of_memory", outcome.ran_out_of_memory)
        message = f"{rank} {report['message']}{when}{_why(folder, report['message'], is_out_of_memory)}"
        return {"rank": report["rank"], "host": report["host"], "step": step, "message": message}
    if report["status"] == REFUSED_STATUS:
        return {**report, "message": f"{rank} refused to start: {report['message']}"}
    if report["step"] is not None:
        step, when = report["step"], _at(report["step"])
    remedy = next((f"; {remedy}" for words, remedy in _LIMITS.items() if words in report["message"]), "")
    return {**report, "step": step, "message": f"{rank} failed{when}: {report['message']}{remedy}"}


def _without_progress(world_size: int, reports: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the ranks for which the others waited: those without a report, or else those that did not wait.

    A launcher that ends a frozen rank lets it run for a moment, in which it may still report that a signal stopped it.
    """
    reporting = {report["rank"] for report in reports}
    waiting = {report["rank"] for report in reports if report.get("waited")}
    missing = [rank for rank in range(world_size) if rank not in reporting]
    return missing or sorted(reporting - waiting if waiting else [])


def _last_known_step(folder: RunFolder, reported: Iterable[int | None]) -> tuple[int | None, str]:
    """Return about the step at which a rank ended, and a phrase that tells the step.

    The step is the smallest one that other ranks reported, or else the last one in the run's metrics.
    """
    step = min((step for step in reported if step is not None), default=None)
    if step is not None:
        return step, f" at or before step {step}"
    if not is_file(folder / STARTUP_FILE):
        return None, ""
    try:
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        step = int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, LookupError, TypeError):
        step = 0
    return step, f" at or after step {step}"


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _ending(status: int) -> str:
    if status == _STOOD_STILL_STATUS:
        return "stood still, and its watchdog ended it"
    return f"was killed by signal {status - 128}" if status in _SIGNAL_STATUSES else f"ended with status {status}"


def _why(folder: RunFolder, ending: str, is_out_of_memory: bool | str) -> str:
    """Return what a signal tells of the data, or of the memory of the rank's machine.

    SIGKILL: the kernel sends it where memory runs out, and counts that; also at the hard limit on processor time, as
    SIGXCPU at the soft one. SIGBUS: a file was cut short after it was
    mapped. SIGSEGV: DALI reads beyond its memory where a record's length is too long, and DALI 2.4 crashed in one of
    four processes that met an image which cannot be decoded.
    """
    is_killed = ending.endswith(f"killed by signal {signal.SIGKILL:d}")
    if is_killed and is_out_of_memory:
        return _memory_ran_out(is_out_of_memory)
    has_time_limit = resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY
    if ending.endswith(f"killed by signal {signal.SIGXCPU:d}") or (is_killed and has_time_limit):
        return ": perhaps its processor time was used up; raise the limit (ulimit -t)"
    if ending.endswith(f"killed by signal {signal.SIGSEGV:d}"):
        return _damaged_image(folder)
    if not ending.endswith(f"killed by signal {signal.SIGBUS:d}"):
        return ""
    try:
        recipe, cluster = folder.settings
        place = resolve_path(cluster.paths.data) / recipe.data.name
        manifest = read_object(place / "manifest.json")
        for split in ("train", "eval"):
            path = place / f"{split}.rec"
            has, needs = path.stat().st_size, manifest[split]["rec_bytes"]
            if has != needs:
                remedy = "the file was changed while the run read it; pack it again with ./run.sh prepare"
                return f": {path} has {has:,} bytes, its manifest says {needs:,}: {remedy}"
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return ": it read beyond the end of a file, for example a truncated copy of the data set, or /dev/shm is full"


def _memory_ran_out(group: bool | str) -> str:
    """Return why the kernel killed a rank: ``group`` is the control group as the rank's own script described it."""
    limit = memory_limit()
    if isinstance(group, bool) and limit is not None:
        group = f"{limit.group}, limit {limit.limit_bytes / 1e9:.2f} GB"
    where = f" ({group})" if isinstance(group, str) else ""
    remedy = "raise the limit, start fewer ranks, or take smaller batches; ./run.sh plan lists the memory"
    return f": the kernel killed it because memory ran out{where}; {remedy}"


def _damaged_image(folder: RunFolder) -> str:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        recipe, cluster = folder.settings
        if recipe.data.source == "synthetic":
            return ""
        place = resolve_path(cluster.paths.data) / recipe.data.name
        verify = f"./run.sh prepare --verify {place} names"
        if found := _wrong_length(place):
            return f": {found}; {verify} all damaged records"
        packages = dict(read_object(folder / ENVIRONMENT_FILE)["packages"])
        if any(name.startswith("nvidia-dali-") and str(packages[name]).startswith("2.") for name in packages):
            return f": DALI 2 may crash at an image that it cannot decode; {verify} damaged images"
    return ""


def _wrong_length(place: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, LookupError):
        files = ((place / f"{split}.rec", place / f"{split}.idx") for split in ("train", "eval"))
        return next(filter(None, (find_wrong_length(*each, _LOOK_S) for each in files)), None)
    return None


def _host_of(folder: RunFolder, rank: int) -> str:
    """Return the host of a rank: from the ranks' start-up ledger or, before it exists, from ``supervise_rank.sh``."""
    if folder.cluster.launcher == "local":
        return socket.gethostname()
    try:
        return str(read_object(folder / STARTUP_FILE)["hosts"][rank])
    except (UserError, LookupError, TypeError):
        pass
    try:
        lines = (folder / "ranks.txt").read_text(encoding="utf-8").splitlines()
        return dict(line.split(" ", 1) for line in lines)[str(rank)]
    except (OSError, ValueError, LookupError):
        return "an unknown host"
