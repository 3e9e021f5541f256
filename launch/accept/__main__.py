"""Accept a machine: one verdict on all nodes of a cluster, against what they should do.

The doctor's checks; the recipe's real step on every rank, alone and together; the allreduce of its buckets, and the way
between any two nodes; the same bits on every processor; and a short run of all ranks that learns.
Exit status: 0 pass, 1 slow or failed, 2 refused before it began.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser, add_place, exit_status, parse
from configs.outputs import guard_outputs
from launch.accept.options import Options


def main(arguments: Sequence[str] | None = None) -> int:
    """Accept a machine, and print the verdict.

    Returns:
        The exit status: 0, 1 if the verdict is slow or failed, 128 + n if signal n stopped the ranks, or see
        `configs.arguments.exit_status`.
    """
    return exit_status(lambda: _accept(parse(_parser(), Options, arguments)))


def _parser() -> Parser:
    parser = Parser(prog="./run.sh accept", description=__doc__)
    add_place(parser, default_name=None)
    recipe = "whose step is taken (default: digits on CPUs, ResNet-50 with 64 images a GPU)"
    parser.add_argument("--recipe", metavar="R", help=recipe)
    minutes = "time to spend; more gives more samples of the step, which tell smaller differences (default: 2)"
    parser.add_argument("--minutes", metavar="M", type=float, default=2.0, help=minutes)
    hosts = "start the ranks on these hosts (node1,node2, node[1-8] or @FILE)"
    parser.add_argument("--hosts", metavar="LIST", help=hosts)
    baseline = "also compare with this accept.json of an earlier acceptance"
    parser.add_argument("--baseline", metavar="FILE", type=Path, help=baseline)
    save = "write accept.json here, too, if the verdict is pass"
    parser.add_argument("--save-baseline", metavar="FILE", type=Path, help=save)
    out = "folder for accept.json, accept.xml (JUnit) and accept.html (default: a new one in runs)"
    parser.add_argument("--out", metavar="DIR", type=Path, help=out)
    return parser


def _accept(options: Options) -> int:
    # Imported here, so that --help works before anything is installed.
    from launch.accept.acceptance import accept

    return accept(options)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
