"""``./run.sh simulate``: predict a run on a described machine, and compare such predictions with measured runs.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

import sys
from collections.abc import Sequence

from configs.arguments import exit_status, parse
from train.sim.options import Options, make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the command line and return the exit status, see `configs.arguments.exit_status`."""
    return exit_status(lambda: _answer(parse(make_parser(), Options, arguments)))


def _answer(options: Options) -> int:
    from train.sim.answers import answer

    sys.stdout.write(answer(options) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
