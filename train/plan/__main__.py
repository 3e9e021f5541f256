"""``./run.sh plan``: print everything that a run would do, without doing it.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.arguments import Parser
from configs.errors import UserError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan.

    Args:
        arguments: The words after ``./run.sh``; the first one may be the verb ``plan``. If None, `sys.argv` holds them.

    Returns:
        The exit status: 0, or 2 if the arguments are wrong or the recipe does not fit the cluster.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["plan"] :])
        sys.stdout.write(_answer(options))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh plan", description="Print everything that a run of RECIPE would do, without doing it."
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a name in configs/recipes, a YAML file, or the config.yaml of a run"
    )
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="change a value of the recipe (run.epochs=3) or of the cluster (cluster.num_nodes=4); repeatable",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON, with the learning rate of every step"
    )
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="also draw the learning rate into a file")
    return parser


def _answer(options: argparse.Namespace) -> str:
    """Return the plan as text or as one line of JSON, and draw the learning rate if ``--plot`` asks for it."""
    from configs.load import load_both
    from train.plan.document import plan_document
    from train.plan.text import render

    recipe, cluster = load_both(options.recipe, options.cluster, options.overrides)
    document: dict[str, Any] = plan_document(recipe, cluster)
    if options.plot:
        # Matplotlib takes a second to load.
        from logs.show.plot import plot_learning_rate

        plot_learning_rate(options.plot, document["schedule"], f"{recipe.name}: learning rate")
    place = ["--cluster", options.cluster] if options.cluster else []
    changes = [word for override in options.overrides for word in ("--set", override)]
    document["command"] = shlex.join(["./run.sh", "train", options.recipe, *place, *changes])
    return json.dumps(document) + "\n" if options.json else render(document)


if __name__ == "__main__":
    # "./run.sh plan RECIPE --json | head" ends quietly when head closes the pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
