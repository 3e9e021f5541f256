"""Check this node, or all nodes of a job, before a long run.

The ranks start as in a run and report what they find; the checks judge the reports.
Exit status: 0 no check failed, 1 a check failed, 2 wrong command line.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from configs.arguments import Parser, add_place, exit_status, parse
from configs.errors import UserError


@dataclass(frozen=True)
class _Options:
    """The command line of ``./run.sh doctor``."""

    recipe: str | None
    cluster: str | None
    overrides: list[str]
    step: bool
    json: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the cluster and print the results.

    Returns:
        The exit status: 0, 1 if a check FAILs, 128 + n if signal n stopped the ranks, or see
        `configs.arguments.exit_status`.
    """
    return exit_status(lambda: _examine(parse(_parser(), _Options, arguments)))


def _parser() -> Parser:
    parser = Parser(prog="./run.sh doctor", description=__doc__)
    add_place(parser)
    parser.add_argument("--recipe", metavar="R", help="also check its data set, and the memory and disk of its plan")
    step = "also run one real step of the recipe on every rank: time and memory of each part (less than two minutes)"
    parser.add_argument("--step", action="store_true", help=step)
    parser.add_argument("--json", action="store_true", help="print the results and all reports of the ranks as JSON")
    return parser


def _examine(options: _Options) -> int:
    # Imported here, so that --help works before anything is installed.
    from launch.doctor.examination import examine

    if options.step and options.recipe is None:
        raise UserError("--step: got no recipe; name one with --recipe")
    found = examine(options.recipe, options.cluster, options.overrides, with_step=options.step)
    if found.stopped_by is not None:
        return 128 + found.stopped_by
    if options.json:
        document = {
            "cluster": found.cluster_name,
            "recipe": options.recipe,
            "ok": not found.has_failed,
            "findings": [asdict(result) for result in found.results],
            "ranks": [asdict(rank) for rank in found.ranks],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{result}\n" for result in found.results))
    return 1 if found.has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
