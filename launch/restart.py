"""Decides after a failure whether the ranks of a run are started again, and keeps the decision in the run folder."""

import sys
from collections.abc import Sequence

from configs.errors import UserError
from launch.failure_cause import Ending
from launch.notify import notify
from launch.start.local import Outcome
from logs.attempts import since_hand
from logs.folder import RunFolder

_FAILURES = 2
"""A scheduler gives a job another host only if the job is queued again, which is worth it for a host that failed twice.
A spare node costs nothing, and may be taken at once."""

ANY_HOST = "any"
"""Before the names of a job's hosts: the scheduler can replace any of them."""


def may_restart(folder: RunFolder, outcome: Outcome, hosts: Sequence[str] = ()) -> bool:
    """Record how the ranks failed, and return whether they are to be started again.

    They are not if the run has come to an end of its own, for example without reaching its target, if it was told to
    stop, if ranks refused to start, or if ``scheduler.max_restarts`` is reached or the attempts make no progress; nor
    if the disk takes no record of it.

    Args:
        folder: The run folder.
        outcome: How the launcher ended.
        hosts: The machines among which the run can choose, more than it needs, by the job's names or addresses; those
            of the attempt come first, in the order of its ranks. One that fails is left out, as long as there are
            enough others. After `ANY_HOST`, those of the attempt alone: one that failed twice is left out. Empty if
            nobody can choose.
    """
    cluster, ending = folder.cluster, Ending.read(folder, outcome)
    is_over = folder.has_summary or not outcome.exit_status or outcome.interrupted_by
    limit = cluster.scheduler.max_restarts
    if is_over or not limit or ending.has_refused or ending.was_stopped:
        return False
    cause, hosts = ending.cause, [*dict.fromkeys(hosts)]
    host, names = cause.get("host"), [each for each in hosts if each != ANY_HOST]
    if "rank" in cause and names:
        # A rank may know its host by another name than the job does, which may list addresses.
        host = names[cause["rank"] // cluster.ranks_per_node]
    spares = max(0, len({*names} - {*folder.attempts.left_out(after=["failed"])}) - cluster.num_nodes)

    def dispensable(bad: Sequence[str]) -> Sequence[str]:
        return bad if ANY_HOST in hosts else [each for each in bad if each in names][:spares]

    try:
        reason = folder.attempts.add(
            "failed",
            cause["message"],
            host=host,
            limit=limit,
            times=_FAILURES if ANY_HOST in hosts else 1,
            may_leave_out=dispensable,
        )
    except UserError as error:  # The cause comes first, and a restart that nobody counts could be one of many.
        reason = str(error)
    if reason is not None:
        sys.stderr.write(f"failed: {cause['message']}; no restart: {reason}\n")
        return False
    attempts, how_often = folder.attempts.read(), " twice" if ANY_HOST in hosts else ""
    number, left_out = sum(each.outcome == "failed" for each in since_hand(attempts)), attempts[-1].leaves_out
    without = f", without {', '.join(left_out)}, which failed{how_often}" if left_out else ""
    message = f"{cause['message']}; restart {number} of at most {limit}{without}"
    sys.stderr.write(f"failed: {message}\n")
    notify(folder, "restart", message)
    return True
