"""The commands that a job script calls around the ranks: claim and prepare a run's folder, keep it, close the run.

A job may be stopped before its end and start again with the same folders. The folder of a run that has ended holds a
summary. The folder of a run that was stopped also holds a file ``unfinished``.
"""

import os
import select
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from configs.arguments import Parser, counted, exit_status, parse
from configs.errors import REFUSED_STATUS, STOPPED_STATUS, UserError
from configs.outputs import guard_outputs
from configs.rank_variables import rank_environment
from configs.reading import is_file
from launch.failure_cause import Ending
from launch.finish import close_refused, finish_run, tell_trouble
from launch.notify import notify
from launch.restart import ANY_HOST, may_restart
from launch.resume import prepare_attempt
from launch.setup.state import in_use
from launch.start.launcher import OutlivedLauncher, kill_launcher_of
from launch.start.local import Outcome
from logs.claims import BEAT_S, STALE_S
from logs.folder import CONFIG_FILE, UNFINISHED_MARK, RunFolder
from logs.nodes import choose_nodes, read_nodes, why_left_out

RESTART = 79
"""Exit status of ``end`` after a failure from which the run goes on: the script starts the ranks again."""

MOVE = 80
"""Exit status of ``end`` if the scheduler is to give the job other hosts, because one that the run had failed twice."""

_STOPPED = "stopped before its end; the same job continues it"


def begin(path: Path, *, script: int | None = None, patience_s: float = 0) -> bool:
    """Claim the folder, and prepare it for an attempt at the run.

    Args:
        path: The run folder.
        script: Process id of the job script, which owns the claim. If None, this process owns it.
        patience_s: How long to wait for an owner that may be gone.

    Returns:
        False if the run has ended in an earlier attempt, so that there is nothing to start.

    Raises:
        UserError: Another process trains in the folder, or the folder is damaged.
    """
    folder = RunFolder(path)
    recipe, cluster = folder.settings
    if folder.has_ended:
        sys.stderr.write(f"{folder.shown}: the run ended in an earlier attempt of this job\n")
        return False
    if folder.claims.owned_by(script or os.getpid()) is None:
        unrecorded = _unrecorded(folder)
        claim = folder.claims.take(pid=script, patience_s=patience_s)
        if folder.has_ended:  # while this job waited
            claim.release()
            return begin(path, script=script)
        if unrecorded and (reason := folder.attempts.add(*unrecorded, limit=cluster.scheduler.max_requeues)):
            sys.stderr.write(f"{folder.shown}: not continued: {reason}\n")
            folder.close_aborted(f"{unrecorded[0]} with its node; not continued: {reason}")
            claim.release()
            return False
    prepare_attempt(folder)
    (folder / UNFINISHED_MARK).unlink(missing_ok=True)
    folder.record_environment(rank_environment(cluster))
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {counted(cluster.world_size, 'rank')}, {folder.shown}\n")
    return True


def _unrecorded(folder: RunFolder) -> tuple[Literal["lost", "stopped"], str] | None:
    """Return outcome and cause of this job's last attempt, if the scheduler began the job again without its asking."""
    if folder.claims.were_lost_by_this_job():
        return "lost", "ended without a report: by SIGKILL, or because its node was lost"
    began = folder.claims.ended_by_this_job()
    if began is None or not is_file(folder / UNFINISHED_MARK):
        return None
    stops = [each for each in folder.attempts.read() if each.outcome == "stopped"]
    if any(datetime.fromisoformat(each.time) >= began for each in stops):
        return None
    return "stopped", "a signal ended the job, and the scheduler restarted it, as after the loss of a node"


def end(
    path: Path,
    status: int,
    *,
    was_signalled: bool,
    is_near_limit: bool = False,
    script: int = 0,
    hosts: Sequence[str] = (),
) -> int:
    """Close the run: complete its log, judge it, and report it.

    Args:
        path: The run folder.
        status: The launcher's exit status. Several launchers replace the ranks' 75 by a status of their own.
        was_signalled: Whether the job got a signal to stop.
        is_near_limit: Whether the job is to be queued again if the run was stopped.
        script: Process id of the job script, which owns the claim. If 0, this process owns it.
        hosts: See `launch.restart.may_restart`.

    Returns:
        0; 1 for a run that failed, or that is not to be queued again; 2 for ranks that refused to start; 75 for a run
        that was stopped and can continue; `RESTART` if the ranks are to be started again; `MOVE`.
    """
    folder = RunFolder(path)
    if not folder.is_begun:
        raise UserError(f"{folder / CONFIG_FILE}: is missing; give the folder of a submitted run")
    claim = folder.claims.owned_by(script or os.getpid())
    if claim is None and (owner := folder.claims.holder()):
        sys.stderr.write(f"error: {folder.shown}: {owner} is training in it; it is left unchanged\n")
        return REFUSED_STATUS
    if claim is not None and claim.is_lost():
        sys.stderr.write(f"error: {folder.shown}: was taken over by another run; this run stops\n")
        return 1
    try:
        result = _close(folder, status, was_signalled=was_signalled, is_near_limit=is_near_limit, hosts=hosts)
    except (UserError, OSError, ImportError) as error:
        result = tell_trouble(folder, Outcome(status), error)
    if claim is not None and result != RESTART:
        claim.release()
    return result


def _close(folder: RunFolder, status: int, *, was_signalled: bool, is_near_limit: bool, hosts: Sequence[str]) -> int:
    """See `end`."""
    recipe, cluster = folder.settings
    summary = folder.summary() if folder.has_summary else None
    # Rank 0 has written this summary. A later signal may have killed a launcher whose ranks had already ended.
    is_over = summary is not None and (summary.status == "success" or summary.steps is not None)
    told = signal.SIGTERM if was_signalled else None
    outcome = Outcome(0 if is_over and told else status, stopped_by=told)
    ending = Ending.read(folder, outcome)
    # Without a status, the signal came before the ranks of this attempt were started.
    if not is_over and (ending.was_stopped or (told and not status)):
        (folder / UNFINISHED_MARK).touch()
        reason = None
        if is_near_limit:
            reason = folder.attempts.add(
                "stopped", "the job's wall time was over", limit=cluster.scheduler.max_requeues
            )
        is_told = ending.was_stopped and ending.reports
        cause: Mapping[str, Any] = ending.cause if is_told else {"message": _STOPPED}
        folder.close_aborted(cause["message"], failed_step=cause.get("step"))
        again = "" if reason is None else f"; it is not queued again: {reason}"
        sys.stderr.write(f"{folder.shown}: the run was stopped before its end{again}\n")
        notify(folder, "stop", f"{recipe.name}: the run was stopped before its end{again}")
        return STOPPED_STATUS if reason is None else 1
    if summary is None and ending.has_refused:
        (folder / UNFINISHED_MARK).touch()  # The same job script can be submitted again.
        return close_refused(folder, outcome)
    if may_restart(folder, outcome, hosts):
        if was_signalled:  # The job has no time left for another attempt.
            (folder / UNFINISHED_MARK).touch()
            return STOPPED_STATUS
        return MOVE if folder.attempts.read()[-1].leaves_out and ANY_HOST in hosts else RESTART
    return finish_run(folder, outcome)


def choose(path: Path, hosts: Sequence[str], checked: Path) -> list[str]:
    """Return the hosts of the next attempt at a run; record those that the check leaves out.

    Args:
        path: The run folder.
        hosts: The hosts of the job, of which there are more than the run needs.
        checked: The run folder with the scores of the check, if there was one.
    """
    folder, scores = RunFolder(path), read_nodes(checked)
    known, failed = folder.attempts.left_out(), folder.attempts.left_out(after=["failed"])
    chosen = choose_nodes(hosts, folder.cluster.num_nodes, failed=list(failed), scores=scores)
    left = {each.host: why for each in scores if each.host not in (*chosen, *known) and (why := why_left_out(each))}
    if left:
        folder.attempts.leave_out(left)
    idle = [host for host in hosts if host not in chosen]
    words = "".join(f"; {why}" for why in left.values())
    sys.stderr.write(f"{folder.shown} on {' '.join(chosen)}, without {' '.join(idle)}{words}\n")
    return chosen


def hold(path: Path) -> None:
    """Lock the claim on a folder and give signs of life until standard input closes, at the end of the script.

    Meanwhile the script waits for the launcher, which is killed here if it outlives its ranks.
    """
    outlived = OutlivedLauncher(path, partial(kill_launcher_of, os.getppid(), path))
    with in_use(), RunFolder(path).claims.held(lambda message: sys.stderr.write(f"error: {message}\n")):
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            outlived.look()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; ``begin`` returns 1 if there is nothing to start, and 2 if the folder is not free."""
    parser = Parser(prog="python -m launch.submit.job", description=__doc__)
    parser.add_argument("step", choices=["begin", "choose", "hold", "end", "left-out"])
    parser.add_argument("folders", type=Path, nargs="+")
    for name in ("--status", "--signals", "--near-limit"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--checked", type=Path)
    return exit_status(lambda: _run(parse(parser, Namespace, arguments)))


def _run(options: Namespace) -> int:
    if options.step == "left-out":
        hosts = sorted({host for folder in options.folders for host in RunFolder(folder).attempts.left_out()})
        sys.stdout.write("".join(f"{host}\n" for host in hosts))
        return 0
    (folder,) = options.folders
    if options.step == "begin":
        return 0 if begin(folder, script=os.getppid(), patience_s=STALE_S + BEAT_S) else 1
    if options.step == "choose":
        chosen = choose(folder, options.hosts.split(), options.checked or folder)
        sys.stdout.write("".join(f"{host}\n" for host in chosen))
        return 0
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
    guard_outputs()
    sys.exit(main())
