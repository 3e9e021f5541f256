"""``python -m launch.start.ranks [--cluster C] [--set KEY=VALUE] -- COMMAND ...``: run any command once for each rank.

The ranks get the launcher and the variables that the ranks of a run get. The benches start their programs by this
command, because train may not import launch.
"""

import sys
from collections.abc import Sequence

from configs.arguments import Parser, add_place, exit_status, parse
from configs.load import load_cluster
from configs.outputs import guard_outputs
from configs.rank_variables import rank_environment
from launch.start.commands import require_startable, run_under
from launch.start.local import ABORTED_STATUS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command under the cluster's launcher; return its exit status, or 2 for a wrong command line."""
    parser = Parser(prog="python -m launch.start.ranks", description=__doc__)
    add_place(parser, cluster="laptop")
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="the command of every rank, after --")
    return exit_status(lambda: parse(parser, _run, arguments))


def _run(*, cluster: str, overrides: list[str], command: list[str]) -> int:
    described = load_cluster(cluster, overrides)
    require_startable(described)
    outcome = run_under(described, command, rank_environment(described))
    why = dict.fromkeys(outcome.frozen, "was frozen, and others gave up waiting for it")
    for rank, status in outcome.failed:
        # A library aborts a rank that has waited for too long.
        if status > 128 and not (outcome.frozen and status == ABORTED_STATUS):  # noqa: PLR2004 (by a signal)
            why[rank] = f"was killed by signal {status - 128}{', because memory ran out' * outcome.ran_out_of_memory}"
    sys.stderr.writelines(f"error: rank {rank} {words}\n" for rank, words in why.items())
    return outcome.exit_status


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
