"""The commands that a job script calls around the ranks: claim and prepare a run's folder, keep it, close the run.

A job may be stopped before its end and start again with the same folders. The folder of a run that has ended holds a
summary. The folder of a run that was stopped also holds a file ``unfinished``.
"""

import os
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from configs.arguments import Parser, exit_status, parse
from configs.errors import STOPPED_STATUS, UserError
from configs.load import load_run
from configs.rank_variables import rank_environment
from launch.notify import notify
from launch.restart import may_restart
from launch.resume import UNFINISHED_MARK, prepare_attempt
from launch.run import REFUSED, finish_run, record_environment, short_path
from launch.setup.state import in_use
from launch.start.local import Outcome
from launch.start.outlived import OutlivedLauncher, kill_launcher_of
from logs.attempts import add_attempt, left_out, read_attempts
from logs.claims import (
    BEAT_S,
    STALE_S,
    ended_by_this_job,
    holder,
    is_lost,
    kept,
    owned_by,
    release,
    take,
    was_lost_by_this_job,
)
from logs.folder import CONFIG_FILE, SUMMARY_FILE, close_aborted, read_summary

RESTART = 79
"""Exit status of ``end`` after a failure from which the run goes on: the script starts the ranks again."""

MOVE = 80
"""Exit status of ``end`` if the run goes on with other hosts, because one of those that it had failed twice."""


def begin(folder: Path, *, script: int | None = None, patience_s: float = 0) -> bool:
    """Claim the folder, and prepare it for an attempt at the run.

    Args:
        folder: The run folder.
        script: Process id of the job script, which owns the claim. If None, this process owns it.
        patience_s: How long to wait for an owner that may be gone.

    Returns:
        False if the run has ended in an earlier attempt, so that there is nothing to start.

    Raises:
        UserError: Another process trains in the folder, or the folder is damaged.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    mark = folder / UNFINISHED_MARK
    if _has_ended(folder):
        sys.stderr.write(f"{short_path(folder)}: the run ended in an earlier attempt of this job\n")
        return False
    if owned_by(folder, script or os.getpid()) is None:
        unrecorded = _unrecorded(folder)
        claim = take(folder, pid=script, patience_s=patience_s)
        if _has_ended(folder):  # while this job waited
            release(claim)
            return begin(folder, script=script)
        if unrecorded and (reason := add_attempt(folder, *unrecorded, limit=cluster.scheduler.max_requeues)):
            sys.stderr.write(f"{short_path(folder)}: not continued: {reason}\n")
            close_aborted(folder, f"{unrecorded[0]} with its node; not continued: {reason}")
            release(claim)
            return False
    prepare_attempt(folder)
    mark.unlink(missing_ok=True)
    record_environment(folder, rank_environment(cluster))
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {cluster.world_size} ranks, {short_path(folder)}\n")
    return True


def _has_ended(folder: Path) -> bool:
    return (folder / SUMMARY_FILE).is_file() and not (folder / UNFINISHED_MARK).is_file()


def _unrecorded(folder: Path) -> tuple[Literal["lost", "stopped"], str] | None:
    """Return outcome and cause of this job's last attempt, if the scheduler began the job again without its asking."""
    if was_lost_by_this_job(folder):
        return "lost", "ended without a word, with its node or by SIGKILL"
    began = ended_by_this_job(folder)
    if began is None or not (folder / UNFINISHED_MARK).is_file():
        return None
    stops = [each for each in read_attempts(folder) if each.outcome == "stopped"]
    if any(datetime.fromisoformat(each.time) >= began for each in stops):
        return None
    return "stopped", "a signal ended the job, and the scheduler began it again, as after the loss of a node"


def end(
    folder: Path,
    status: int,
    *,
    was_signalled: bool,
    is_near_limit: bool = False,
    script: int = 0,
    hosts: Sequence[str] = (),
) -> int:
    """Close the run: complete its log, judge it, and report it.

    Args:
        folder: The run folder.
        status: The launcher's exit status. Several launchers replace the ranks' 75 by a status of their own.
        was_signalled: Whether the job got a signal to stop.
        is_near_limit: Whether the job is to be queued again if the run was stopped.
        script: Process id of the job script, which owns the claim. If 0, this process owns it.
        hosts: See `launch.restart.may_restart`.

    Returns:
        0; 1 for a run that failed, or that is not to be queued again; 2 for ranks that refused to start; 75 for a run
        that was stopped and can continue; `RESTART` if the ranks are to be started again; `MOVE`.
    """
    claim = owned_by(folder, script or os.getpid())
    if claim is None and (owner := holder(folder)):
        sys.stderr.write(f"error: {short_path(folder)}: {owner} trains in it, and it is left as it is\n")
        return REFUSED
    if claim is not None and is_lost(claim):
        sys.stderr.write(f"error: {short_path(folder)}: the folder has another owner now, and is left to it\n")
        return 1
    result = _close(folder, status, was_signalled=was_signalled, is_near_limit=is_near_limit, hosts=hosts)
    if claim is not None and result != RESTART:
        release(claim)
    return result


def _close(folder: Path, status: int, *, was_signalled: bool, is_near_limit: bool, hosts: Sequence[str]) -> int:
    """See `end`."""
    recipe, cluster = load_run(folder / CONFIG_FILE)
    summary = read_summary(folder) if (folder / SUMMARY_FILE).is_file() else None
    is_success = summary is not None and summary.status == "success"
    if not is_success and (was_signalled or status == STOPPED_STATUS):
        (folder / UNFINISHED_MARK).touch()
        reason = None
        if is_near_limit:
            reason = add_attempt(folder, "stopped", "the job's time was over", limit=cluster.scheduler.max_requeues)
        close_aborted(folder, "stopped before its end; the same job continues it")
        again = "" if reason is None else f"; it is not queued again: {reason}"
        sys.stderr.write(f"{short_path(folder)}: the run was stopped before its end{again}\n")
        notify(cluster, folder, "stop", f"{recipe.name}: the run was stopped before its end{again}")
        return STOPPED_STATUS if reason is None else 1
    if summary is None and status == REFUSED:
        return REFUSED
    # A signal after the last step may have killed a launcher whose ranks had already succeeded.
    outcome = Outcome(0 if was_signalled else status)
    try:
        if may_restart(folder, cluster, outcome, hosts):
            return MOVE if read_attempts(folder)[-1].leaves_out else RESTART
        return finish_run(folder, recipe, cluster, outcome)
    except UserError as error:  # The ranks have run, so the status must not be the one of a refusal.
        sys.stderr.write(f"error: {error}\n")
        return 1


def hold(folder: Path) -> None:
    """Lock the claim on a folder and give signs of life until standard input closes, at the end of the script.

    Meanwhile the script waits for the launcher, which is killed here if it outlives its ranks.
    """
    # The script, which waits for the launcher, and the launcher get the signals of the job.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    outlived = OutlivedLauncher(folder, partial(kill_launcher_of, os.getppid(), folder))
    with in_use(), kept(folder, lambda words: sys.stderr.write(f"error: {words}\n")):
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            outlived.look()


@dataclass(frozen=True)
class _Options:
    """The command line of ``python -m launch.submit.job``; all after ``folders`` is for ``end``."""

    step: str
    folders: list[Path]
    status: int
    signals: int
    near_limit: int
    hosts: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; ``begin`` returns 1 if there is nothing to start, and 2 if the folder is not free."""
    parser = Parser(prog="python -m launch.submit.job", description=__doc__)
    parser.add_argument("step", choices=["begin", "hold", "end", "left-out"])
    parser.add_argument("folders", type=Path, nargs="+")
    for name in ("--status", "--signals", "--near-limit"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--hosts", default="")
    return exit_status(lambda: _run(parse(parser, _Options, arguments)))


def _run(options: _Options) -> int:
    if options.step == "left-out":
        hosts = sorted({host for folder in options.folders for host in left_out(folder)})
        sys.stdout.write("".join(f"{host}\n" for host in hosts))
        return 0
    (folder,) = options.folders
    if options.step == "begin":
        return 0 if begin(folder, script=os.getppid(), patience_s=STALE_S + BEAT_S) else 1
    if options.step == "hold":
        hold(folder)
        return 0
    return end(
        folder,
        options.status,
        was_signalled=options.signals > 0,
        is_near_limit=options.near_limit > 0,
        script=os.getppid(),
        hosts=options.hosts.split(),
    )


if __name__ == "__main__":
    sys.exit(main())
