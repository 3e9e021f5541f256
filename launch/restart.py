"""Decides after a failure whether the ranks of a run are started again, and keeps the decision in the run folder."""

from __future__ import annotations

import sys
from pathlib import Path

from configs.schema import Cluster
from launch.failure_cause import find_cause, read_failures, was_stopped
from launch.notify import notify
from launch.start.local import Outcome
from logs.attempts import add_attempt, read_attempts
from logs.folder import SUMMARY_FILE

__all__ = ["may_restart"]


def may_restart(folder: Path, cluster: Cluster, outcome: Outcome) -> bool:
    """Record how the ranks failed, and return whether they are to be started again.

    They are not if the run has come to an end of its own, for example without reaching its target, if it was told to
    stop, or if ``scheduler.max_restarts`` is reached or the attempts make no progress.

    Args:
        folder: The run folder.
        cluster: The cluster of the run.
        outcome: How the launcher ended.

    Raises:
        UserError: If the disk is full, or the disk or the file server is in trouble.
    """
    reports = read_failures(folder)
    is_over = (folder / SUMMARY_FILE).exists() or not outcome.exit_status or outcome.interrupted_by
    limit = cluster.scheduler.max_restarts
    if is_over or not limit or was_stopped(outcome, reports, cluster.world_size):
        return False
    cause = find_cause(folder, cluster, outcome, reports)
    reason = add_attempt(folder, "failed", cause["message"], host=cause.get("host"), limit=limit)
    if reason is not None:
        sys.stderr.write(f"failed: {cause['message']}; no restart: {reason}\n")
        return False
    number = sum(each.outcome == "failed" for each in read_attempts(folder))
    words = f"{cause['message']}; restart {number} of at most {limit}"
    sys.stderr.write(f"failed: {words}\n")
    notify(cluster, folder, "restart", words)
    return True
