"""The launching verbs: ``train`` runs a recipe here, under the launcher of its cluster file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import load_both
from launch.run import launch_run
from logs.folder import CONFIG_FILE

__all__ = ["main"]

_TRACE_STEPS = 3


def _parser() -> Parser:
    parser = Parser(prog="./run.sh", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    train = verbs.add_parser(
        "train", help="run a recipe here",
        description="Train RECIPE to its target, check the log with the official checker, print a summary.",
    )  # fmt: skip
    train.add_argument(
        "recipe", metavar="RECIPE", nargs="?",
        help="a name in configs/recipes, a YAML file, a run's config.yaml (default with --resume: that run's)",
    )  # fmt: skip
    train.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    train.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
        help="change a value of the recipe (run.epochs=3) or of the cluster (cluster.ranks_per_node=1); repeatable",
    )  # fmt: skip
    train.add_argument(
        "--trace", dest="overrides", action="append_const", const=f"cluster.trace_steps={_TRACE_STEPS}",
        help=f"write {_TRACE_STEPS} steps to trace.json in the run's folder, for Chrome's viewer or ui.perfetto.dev",
    )  # fmt: skip
    folder = train.add_mutually_exclusive_group()
    folder.add_argument(
        "--run-dir", metavar="DIR", type=Path,
        help="the run's folder (default: runs/RECIPE-DATE-TIME); an unfinished run of the same recipe there goes on",
    )  # fmt: skip
    folder.add_argument("--resume", metavar="RUN", type=Path, help="the folder of an unfinished run, which goes on")
    return parser


def _train(options: Any) -> int:
    """Run or resume."""
    resumed: Path | None = options.resume
    own = None if resumed is None else str(resumed / CONFIG_FILE)
    name = options.recipe or own
    if name is None:
        raise UserError("RECIPE is missing: give a name in configs/recipes, as digits; see ./run.sh train --help")
    recipe, cluster = load_both(name, options.cluster or own, options.overrides)
    return launch_run(recipe, cluster, resumed or options.run_dir, must_resume=resumed is not None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; give its exit status: 0 success, 1 a failed run or log, 2 wrong usage, 75 stopped, 130 Ctrl-C."""
    try:
        options = _parser().parse_args(arguments)
        return _train(options)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
