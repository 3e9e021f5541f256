"""The verb ``train``: run a recipe here, under the launcher of its cluster file."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser, add_from, add_place, add_recipe, exit_status, parse
from configs.errors import UserError
from configs.outputs import guard_outputs

_TRACE_STEPS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit status.

    Args:
        arguments: The arguments of the command line, with or without the verb. If None, the process's own.

    Returns:
        0 success, 1 a failed run, or a failed log check of a recipe that submits, 2 a wrong command line, 75 a run that
        was stopped and can be resumed, 130 Ctrl-C.
    """
    about = (
        "Train RECIPE to its target and print a summary. Ctrl-C saves the state and ends the run, a second one ends it "
        "at once. Exit status: 0 success; 1 the run failed, or the recipe submits (mlperf.submits) and its log fails "
        "the official MLPerf check; 2 wrong input; 75 stopped by a scheduler, with its state saved; 130 Ctrl-C."
    )
    parser = Parser(prog="./run.sh train", description=about)
    add_recipe(parser, is_optional=True)
    add_place(parser)
    add_from(parser)
    parser.add_argument(
        "--trace",
        dest="overrides",
        action="append_const",
        const=f"cluster.trace_steps={_TRACE_STEPS}",
        help=f"write {_TRACE_STEPS} steps to trace.json in the run folder, for Chrome's viewer or ui.perfetto.dev",
    )
    restarts = "restart the ranks after a crash, from the last checkpoint, up to N times (default: 0)"
    parser.add_argument("--max-restarts", metavar="N", help=restarts)
    folder = parser.add_mutually_exclusive_group()
    place = "the run folder (default: runs/RECIPE-DATE-TIME); an unfinished run of the same recipe there is resumed"
    folder.add_argument("--run-dir", metavar="DIR", type=Path, help=place)
    resume = "resume the unfinished run in this folder; RECIPE and --cluster default to those of the run"
    folder.add_argument("--resume", metavar="RUN", type=Path, help=resume)
    return exit_status(lambda: _train(parse(parser, Namespace, arguments)))


def _train(options: Namespace) -> int:
    # Imported here, so that --help works before anything is installed.
    from configs.load import load_both, load_run
    from configs.reading import is_file
    from launch.run import launch_run
    from launch.setup.state import in_use
    from logs.folder import CONFIG_FILE
    from logs.weights import starting_weights

    if options.resume and options.start_from:
        raise UserError("--from begins a new run, --resume continues one with its own weights; leave one of them out")
    recorded = None if options.resume is None else str(options.resume / CONFIG_FILE)
    if recorded is not None and not is_file(Path(recorded)):
        raise UserError(f"--resume: got {options.resume}, allowed: the folder of a run; it has no {CONFIG_FILE}")
    if recorded is not None:
        load_run(Path(recorded))  # A mistake in the file is told with its path, one of --set below without it.
    name = options.recipe or recorded
    if name is None:
        raise UserError(
            "RECIPE is missing: give a name, for example digits, or your own file; ./run.sh recipes lists the names"
        )
    restarts = [] if options.max_restarts is None else [f"cluster.scheduler.max_restarts={options.max_restarts}"]
    overrides = [*starting_weights(options.start_from), *options.overrides, *restarts]
    recipe, cluster = load_both(name, options.cluster or recorded, overrides)
    with in_use():
        return launch_run(recipe, cluster, options.resume or options.run_dir, must_resume=options.resume is not None)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
