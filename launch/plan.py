"""``./run.sh plan``: render the ranks' environment, then become the planner, which `launch` runs but never imports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import load_both
from configs.rank_variables import rank_environment

__all__ = ["main", "planner_command"]


def planner_command(arguments: Sequence[str]) -> list[str]:
    """Give the planner's command line for the user's ``arguments``, with the environment that ranks would get.

    Raises:
        UserError: The recipe or the cluster cannot be used.
    """
    parser = Parser(prog="./run.sh plan", add_help=False)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--cluster")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--plot")
    options, _ = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "train.plan.document", *arguments]
    if options.recipe is None:
        return command
    _, cluster = load_both(options.recipe, options.cluster, options.overrides)
    return [*command, "--environment", json.dumps(rank_environment(cluster))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan; gives 2 for wrong input and does not come back otherwise."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        command = planner_command(given[1:] if given[:1] == ["plan"] else given)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
