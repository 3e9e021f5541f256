"""The launching verbs: ``train`` runs a recipe here, under the launcher of its cluster file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import load_both
from launch.run import launch_run

__all__ = ["main"]

_TRACE_STEPS = 3


def _parser() -> Parser:
    parser = Parser(prog="./run.sh", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    train = verbs.add_parser(
        "train", help="run a recipe here",
        description="Train RECIPE to its target, check the log with the official checker, print a summary.",
    )  # fmt: skip
    train.add_argument("recipe", metavar="RECIPE", help="a name in configs/recipes, a YAML file, a run's config.yaml")
    train.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    train.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
        help="change a value of the recipe (run.epochs=3) or of the cluster (cluster.ranks_per_node=1); repeatable",
    )  # fmt: skip
    train.add_argument(
        "--trace", dest="overrides", action="append_const", const=f"cluster.trace_steps={_TRACE_STEPS}",
        help=f"write {_TRACE_STEPS} steps to trace.json in the run's folder, for Chrome's viewer or ui.perfetto.dev",
    )  # fmt: skip
    train.add_argument("--run-dir", metavar="DIR", type=Path, help="the run's folder (default: runs/RECIPE-DATE-TIME)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; give its exit status: 0 success, 1 a failed run or log, 2 wrong usage, 130 interrupted."""
    try:
        options = _parser().parse_args(arguments)
        recipe, cluster = load_both(options.recipe, options.cluster, options.overrides)
        return launch_run(recipe, cluster, options.run_dir)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
