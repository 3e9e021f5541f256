"""``./run.sh sweep STUDY``: run those cells of a study that have no result yet, then write its table and its plot.

Every cell is an ordinary run in a folder of its own, so a sweep that was stopped continues where it was.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study, or list its runs with ``--dry-run``.

    Args:
        arguments: The words of the command line, with or without the verb. If None, the process's own.

    Returns:
        The exit status: 0, 1 for a cell that failed, 2 for a wrong command line, study or folder, 128 + n if signal n
        stopped a run.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _sweep(_parser().parse_args(words[words[:1] == ["sweep"] :]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _parser() -> Parser:
    parser = Parser(prog="./run.sh sweep", description=__doc__)
    parser.add_argument("study", metavar="STUDY", help="a name in configs/studies or a YAML file")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and what is known of them")
    parser.add_argument("--runs", metavar="DIR", type=Path, help="the runs' folder (default: runs/STUDY)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="for the page, CSV and SVG (default: with the runs)")
    return parser


def _sweep(options: Namespace) -> int:
    # Imported here, so that --help works before anything is installed.
    from configs.load import resolve_path
    from configs.scaling_study import ScalingStudy
    from configs.study import load_study
    from launch.run import launch_run
    from launch.study.accuracy_runs import run_accuracy
    from launch.study.scaling_runs import run_scaling
    from launch.submit.submission import submit_run

    study = load_study(options.study)
    if isinstance(study, ScalingStudy):
        place = study.base_cluster()
        runs = options.runs or resolve_path(place.paths.runs) / study.name
        starter = launch_run if place.scheduler.kind == "none" else submit_run
        return run_scaling(study, runs, options.output or runs, is_dry_run=options.dry_run, starter=starter)
    _, cluster = study.load(next(study.grid_cells()))
    runs = options.runs or resolve_path(cluster.paths.runs) / study.name
    return run_accuracy(study, runs, options.output or runs, is_dry_run=options.dry_run, starter=launch_run)


if __name__ == "__main__":
    sys.exit(main())
