"""``./run.sh doctor``: check this node, or all nodes of a job, before a long run.

Ranks are started as in a run and report what they find; the checks judge the reports.
Exit status: 0, 1 if a check FAILs, 2 for a wrong command line.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from configs.arguments import Parser
from configs.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the cluster and print the results.

    Args:
        arguments: The words of the command line, with or without the verb. If None, the process's own.

    Returns:
        The exit status: 0, 1 if a check FAILs, 2 for a wrong command line, 128 + n if signal n stopped the ranks.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _examine(_parser().parse_args(words[words[:1] == ["doctor"] :]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _parser() -> Parser:
    parser = Parser(prog="./run.sh doctor", description=__doc__)
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    parser.add_argument("--recipe", metavar="R", help="also check its data set, and the memory and disk of its plan")
    step = "also take the recipe's real step on every rank: time and memory of each part (under two minutes)"
    parser.add_argument("--step", action="store_true", help=step)
    overrides = "change a value of the recipe or, as cluster.KEY, of the cluster; repeatable"
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=overrides)
    parser.add_argument("--json", action="store_true", help="the results, and all that the ranks reported, for tools")
    return parser


def _examine(options: Namespace) -> int:
    # Imported here, so that --help works before anything is installed.
    from launch.doctor.examination import examine

    if options.step and options.recipe is None:
        raise UserError("--step: got no recipe; name the recipe whose step is to be taken with --recipe")
    found = examine(options.recipe, options.cluster, options.overrides, with_step=options.step)
    if found.stopped_by is not None:
        return 128 + found.stopped_by
    if options.json:
        document = {
            "cluster": found.cluster_name,
            "recipe": options.recipe,
            "ok": not found.has_failed,
            "findings": [asdict(result) for result in found.results],
            "ranks": found.ranks,
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{result}\n" for result in found.results))
    return 1 if found.has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
