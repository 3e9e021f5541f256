"""Run the cells of a study that have no result yet, then write its table and its plot.

Every cell is an ordinary run in its own folder, so a stopped sweep continues where it stopped: in a study of accuracy
from the checkpoint of the stopped run. Where speed is measured, the stopped run begins again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser, exit_status, parse
from configs.outputs import guard_outputs

_EPILOG = """\
a study of your own, here of three learning rates and two batches with three seeds:

  name: rates
  title: Which learning rate suits which batch
  purpose: To see whether twice the batch takes twice the rate.
  recipe: digits
  swept: batch.global_size
  tuned: schedule.base_lr
  seeds: [1, 2, 3]
  curves:
    LARS: {grid: {64: [0.5, 1, 2], 128: [0.5, 1, 2]}}

./run.sh keys study explains the keys."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study, or list its runs with ``--dry-run``.

    Returns:
        The exit status, see `configs.arguments.exit_status`; also 1 for a cell that failed, and 128 + n if signal n
        stopped a run.
    """
    parser = Parser(prog="./run.sh sweep", description=__doc__, epilog=_EPILOG)
    parser.add_argument("study", metavar="STUDY", help="a name in configs/studies or a YAML file")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their states")
    parser.add_argument("--runs", metavar="DIR", type=Path, help="folder of the runs (default: runs/STUDY)")
    words = "folder for the page, CSV and SVG (default: that of the runs)"
    parser.add_argument("--output", metavar="DIR", type=Path, help=words)
    return exit_status(lambda: parse(parser, _sweep, arguments))


def _sweep(study: str, *, dry_run: bool, runs: Path | None, output: Path | None) -> int:
    # Imported here, so that --help works before anything is installed.
    from configs.load import resolve_path
    from configs.study import Study, load_study
    from launch.run import launch_run
    from launch.study.accuracy import run_accuracy
    from launch.study.scaling import run_scaling
    from launch.submit.submission import submit_run
    from logs.disk import explain_disk_errors

    loaded = load_study(study)
    place = loaded.load(next(loaded.cells()))[1] if isinstance(loaded, Study) else loaded.base_cluster
    runs = runs or resolve_path(place.paths.runs) / loaded.name
    output = output or runs
    if not dry_run:
        with explain_disk_errors(output):
            output.mkdir(parents=True, exist_ok=True)
    if isinstance(loaded, Study):
        return run_accuracy(loaded, runs, output, is_dry_run=dry_run, starter=launch_run)
    starter = launch_run if place.scheduler.kind == "none" else submit_run
    return run_scaling(loaded, runs, output, is_dry_run=dry_run, starter=starter)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
