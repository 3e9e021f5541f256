"""Accept a machine: one verdict on all nodes of a cluster, against what they should do.

The doctor's checks; the recipe's real step on every rank, alone and together; the allreduce of its buckets, and the way
between any two nodes; the same bits on every processor; and a short run of all ranks that learns.
Exit status: 0 pass, 1 slow or failed, 2 refused before it began.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.arguments import Parser, add_place, exit_status, option, parse
from configs.outputs import guard_outputs


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh accept``."""

    cluster: str | None
    overrides: Sequence[str]
    recipe: str | None = option(
        "whose step is taken (default: digits on CPUs, ResNet-50 with 64 images a GPU)", metavar="R"
    )
    minutes: float = option(
        "time to spend; more gives more samples of the step, which tell smaller differences",
        2.0,
        metavar="M",
        type=float,
    )
    hosts: str | None = option("start the ranks on these hosts (node1,node2, node[1-8] or @FILE)", metavar="LIST")
    baseline: Path | None = option(
        "also compare with this accept.json of an earlier acceptance", metavar="FILE", type=Path
    )
    save_baseline: Path | None = option(
        "write accept.json here, too, if the verdict is pass", metavar="FILE", type=Path
    )
    out: Path | None = option(
        "folder for accept.json, accept.xml (JUnit) and accept.html (default: a new one in runs)",
        metavar="DIR",
        type=Path,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Accept a machine, and print the verdict.

    Returns:
        The exit status: 0, 1 if the verdict is slow or failed, or see `configs.arguments.exit_status`.

    Raises:
        SystemExit: Signal n stopped the ranks; the status is 128 + n.
    """
    parser = Parser(prog="./run.sh accept", description=__doc__)
    add_place(parser, default_name=None)
    return exit_status(lambda: _accept(parse(parser, Options, arguments)))


def _accept(options: Options) -> int:
    # Imported here, so that --help works before anything is installed.
    from launch.accept.acceptance import accept

    return accept(options)


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
