"""``./run.sh plan``: print everything that a run would do, without doing it.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.arguments import Parser, add_from, add_place, add_recipe, exit_status, option, parse, picture


@dataclass(frozen=True)
class _Options:
    """The command line of ``./run.sh plan``."""

    recipe: str
    cluster: str | None
    overrides: list[str]
    start_from: Path | None
    json: bool = option("print the plan as JSON, with the learning rate of every step", default=False)
    plot: Path | None = option("also draw the learning rate, as SVG or PNG", metavar="FILE", type=picture)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan and return the exit status, see `configs.arguments.exit_status`."""
    parser = Parser(
        prog="./run.sh plan", description="Print everything that a run of RECIPE would do, without doing it."
    )
    add_recipe(parser)
    add_place(parser)
    add_from(parser)
    return exit_status(lambda: _print_plan(parse(parser, _Options, arguments)))


def _print_plan(options: _Options) -> int:
    """Print the plan as text or as one line of JSON, and draw the learning rate if ``--plot`` asks for it."""
    from configs.load import load_both
    from logs.disk import require_replaceable
    from logs.weights import starting_weights
    from train.engine.parameters import require_parameters
    from train.plan.document import plan_document, render

    if options.plot:
        read = (options.recipe, options.cluster, options.start_from)
        require_replaceable("--plot", options.plot, [path for path in read if path])
    overrides = [*starting_weights(options.start_from), *options.overrides]
    recipe, cluster = load_both(options.recipe, options.cluster, overrides)
    require_parameters(recipe, cluster)
    document: dict[str, Any] = plan_document(recipe, cluster)
    if options.plot:
        # Matplotlib takes a second to load.
        from logs.show.drawing import plot_learning_rate

        plot_learning_rate(options.plot, document["schedule"], f"{recipe.name}: learning rate")
    sys.stdout.write(json.dumps(document) + "\n" if options.json else render(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
