"""The verb ``train``: run a recipe here, under the launcher of its cluster file."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError

_TRACE_STEPS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb.

    Args:
        arguments: The words of the command line, from the verb on. If None, the process's own.

    Returns:
        The exit status: 0 success, 1 a failed run or log check, 2 a wrong command line, 75 a run that was stopped and
        can be resumed, 130 Ctrl-C.
    """
    try:
        return _train(_parser().parse_args(arguments))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    parser = Parser(prog="./run.sh", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = "Train RECIPE to its target, check the log with the official checker, and print a summary."
    train = verbs.add_parser("train", help="run a recipe here", description=about)
    recipe = (
        "a name in configs/recipes, a YAML file, or a run's config.yaml (default with --resume: the config.yaml of RUN)"
    )
    train.add_argument("recipe", metavar="RECIPE", nargs="?", help=recipe)
    train.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    overrides = "change a value of the recipe (run.epochs=3) or of the cluster (cluster.ranks_per_node=1); repeatable"
    train.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=overrides)
    train.add_argument(
        "--trace",
        dest="overrides",
        action="append_const",
        const=f"cluster.trace_steps={_TRACE_STEPS}",
        help=f"write {_TRACE_STEPS} steps to trace.json in the run folder, for Chrome's viewer or ui.perfetto.dev",
    )
    restarts = "start the ranks again after a crash, from the last checkpoint, up to N times (default: 0)"
    train.add_argument("--max-restarts", metavar="N", help=restarts)
    folder = train.add_mutually_exclusive_group()
    place = "the run folder (default: runs/RECIPE-DATE-TIME); an unfinished run of the same recipe there is resumed"
    folder.add_argument("--run-dir", metavar="DIR", type=Path, help=place)
    folder.add_argument("--resume", metavar="RUN", type=Path, help="resume the unfinished run in this folder")
    return parser


def _train(options: Namespace) -> int:
    # Imported here, so that --help works before anything is installed.
    from configs.load import load_both
    from launch.run import launch_run
    from launch.setup.state import in_use
    from logs.folder import CONFIG_FILE

    resumed: Path | None = options.resume
    recorded = None if resumed is None else str(resumed / CONFIG_FILE)
    name = options.recipe or recorded
    if name is None:
        raise UserError(
            "RECIPE is missing: give a name in configs/recipes, for example digits; see ./run.sh train --help"
        )
    if options.max_restarts is not None:
        options.overrides.append(f"cluster.scheduler.max_restarts={options.max_restarts}")
    recipe, cluster = load_both(name, options.cluster or recorded, options.overrides)
    with in_use():
        return launch_run(recipe, cluster, resumed or options.run_dir, must_resume=resumed is not None)


if __name__ == "__main__":
    sys.exit(main())
