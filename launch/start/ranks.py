"""``python -m launch.start.ranks [--cluster C] [--set KEY=VALUE] -- COMMAND ...``: run any command once for each rank.

The ranks get the launcher and the variables that the ranks of a run get. The benches start their programs by this
command, because train may not import launch.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from configs.arguments import Parser, add_place, exit_status, parse
from configs.errors import UserError
from configs.load import load_cluster
from configs.outputs import guard_outputs
from configs.rank_variables import rank_environment
from launch.start.commands import require_startable, run_under


@dataclass(frozen=True)
class _Options:
    """The command line of ``python -m launch.start.ranks``."""

    cluster: str
    overrides: list[str]
    command: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command under the cluster's launcher; return its exit status, or 2 for a wrong command line."""
    parser = Parser(prog="python -m launch.start.ranks", description=__doc__)
    add_place(parser, cluster="laptop")
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command of every rank")
    return exit_status(lambda: _run(parse(parser, _Options, arguments)))


def _run(options: _Options) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UserError("COMMAND is missing; give the command of every rank after --")
    cluster = load_cluster(options.cluster, options.overrides)
    require_startable(cluster)
    return run_under(cluster, command, rank_environment(cluster)).exit_status


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
