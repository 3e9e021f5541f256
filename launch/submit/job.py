"""What a job script asks of this program around its ranks: make a run's folder ready, and tell how the run ended.

A job may be stopped before its end and begun again, with the same folders. A run that is over has a summary; one that
was stopped has a file ``unfinished`` beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import STOPPED_STATUS, UserError
from configs.load import load_run
from configs.rank_variables import rank_environment
from launch.resume import UNFINISHED_MARK, make_ready
from launch.run import REFUSED, finish_run, record_environment, shown
from launch.start.local import Outcome
from logs.folder import CONFIG_FILE, SUMMARY_FILE, close_aborted, read_summary

__all__ = ["begin", "end", "main"]


def begin(folder: Path) -> bool:
    """Make the folder ready for an attempt; gives False, and says so, where the run is over."""
    recipe, cluster = load_run(folder / CONFIG_FILE)
    mark = folder / UNFINISHED_MARK
    if (folder / SUMMARY_FILE).is_file() and not mark.is_file():
        sys.stderr.write(f"{shown(folder)}: was over in an earlier attempt of this job\n")
        return False
    make_ready(folder)
    mark.unlink(missing_ok=True)
    record_environment(folder, rank_environment(cluster))
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {cluster.world_size} ranks, {shown(folder)}\n")
    return True


def end(folder: Path, status: int, *, was_told: bool) -> int:
    """Close, judge and report the run; give 0, 1 for a failed one, 2 for a refused one, 75 for one to be continued.

    Args:
        folder: The run's.
        status: The launcher's exit status; several launchers turn the ranks' 75 into their own.
        was_told: The job was signalled to stop.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    summary = read_summary(folder) if (folder / SUMMARY_FILE).is_file() else None
    is_success = summary is not None and summary.status == "success"
    if not is_success and (was_told or status == STOPPED_STATUS):
        (folder / UNFINISHED_MARK).touch()
        close_aborted(folder, "stopped before its end; the same job continues it")
        sys.stderr.write(f"{shown(folder)}: stopped before its end\n")
        return STOPPED_STATUS
    if summary is None and status == REFUSED:
        return REFUSED
    try:
        # A notice that came when all was done may have ended a launcher that was about to end.
        return finish_run(folder, recipe, cluster, Outcome(0 if was_told else status))
    except UserError as error:  # As in a run without a job: the ranks have run, so this is no refusal.
        sys.stderr.write(f"error: {error}\n")
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one of the steps; gives its exit status."""
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
        return end(options.folder, options.status, was_told=options.signals > 0)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
