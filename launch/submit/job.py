"""The two commands that a job script calls around the ranks: prepare a run's folder, and close the run.

A job may be stopped before its end and start again with the same folders. The folder of a run that has ended holds a
summary. The folder of a run that was stopped also holds a file ``unfinished``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import STOPPED_STATUS, UserError
from configs.load import load_run
from configs.rank_variables import rank_environment
from launch.resume import UNFINISHED_MARK, prepare_attempt
from launch.run import REFUSED, finish_run, record_environment, short_path
from launch.start.local import Outcome
from logs.folder import CONFIG_FILE, SUMMARY_FILE, close_aborted, read_summary

__all__ = ["begin", "end", "main"]


def begin(folder: Path) -> bool:
    """Prepare the folder for an attempt at the run.

    Returns:
        False if the run has ended in an earlier attempt, so that there is nothing to start.

    Raises:
        UserError: The folder is damaged.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    mark = folder / UNFINISHED_MARK
    if (folder / SUMMARY_FILE).is_file() and not mark.is_file():
        sys.stderr.write(f"{short_path(folder)}: the run ended in an earlier attempt of this job\n")
        return False
    prepare_attempt(folder)
    mark.unlink(missing_ok=True)
    record_environment(folder, rank_environment(cluster))
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {cluster.world_size} ranks, {short_path(folder)}\n")
    return True


def end(folder: Path, status: int, *, was_signalled: bool) -> int:
    """Close the run: complete its log, judge it, and report it.

    Args:
        folder: The run folder.
        status: The launcher's exit status. Several launchers replace the ranks' 75 by a status of their own.
        was_signalled: Whether the job got a signal to stop.

    Returns:
        0; 1 for a run that failed; 2 for ranks that refused to start; 75 for a run that was stopped and can continue.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    summary = read_summary(folder) if (folder / SUMMARY_FILE).is_file() else None
    is_success = summary is not None and summary.status == "success"
    if not is_success and (was_signalled or status == STOPPED_STATUS):
        (folder / UNFINISHED_MARK).touch()
        close_aborted(folder, "stopped before its end; the same job continues it")
        sys.stderr.write(f"{short_path(folder)}: the run was stopped before its end\n")
        return STOPPED_STATUS
    if summary is None and status == REFUSED:
        return REFUSED
    try:
        # A signal after the last step may have killed a launcher whose ranks had already succeeded.
        return finish_run(folder, recipe, cluster, Outcome(0 if was_signalled else status))
    except UserError as error:  # The ranks have run, so the status must not be the one of a refusal.
        sys.stderr.write(f"error: {error}\n")
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two commands and return its exit status; ``begin`` returns 1 if there is nothing to start."""
    parser = Parser(prog="python -m launch.submit.job", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("begin", "end"):
        step = steps.add_parser(name)
        step.add_argument("folder", type=Path)
        if name == "end":
            step.add_argument("--status", type=int, required=True)
            step.add_argument("--signals", type=int, required=True)
    try:
        options = parser.parse_args(arguments)
        if options.step == "begin":
            return 0 if begin(options.folder) else 1
        return end(options.folder, options.status, was_signalled=options.signals > 0)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
