"""``python -m launch.start.ranks [--cluster C] [--set KEY=VALUE] -- COMMAND ...``: run any command once for each rank.

The ranks get the launcher and the variables that the ranks of a run get. The benches start their programs by this
command, because train may not import launch.
"""

import argparse
import sys
from collections.abc import Sequence

from configs.arguments import Parser, add_place, exit_status, parse
from configs.errors import UserError
from configs.load import load_cluster
from configs.outputs import guard_outputs
from configs.rank_variables import rank_environment
from launch.start.commands import require_startable, run_under


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command under the cluster's launcher; return its exit status, or 2 for a wrong command line."""
    parser = Parser(prog="python -m launch.start.ranks", description=__doc__)
    add_place(parser, cluster="laptop")
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command of every rank")
    return exit_status(lambda: parse(parser, _run, arguments))


def _run(*, cluster: str, overrides: list[str], command: list[str]) -> int:
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise UserError("COMMAND is missing; give the command of every rank after --")
    described = load_cluster(cluster, overrides)
    require_startable(described)
    return run_under(described, words, rank_environment(described)).exit_status


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
