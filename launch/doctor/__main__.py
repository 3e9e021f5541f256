"""Check this node, or all nodes of a job, before a long run.

The ranks start as in a run and report what they find; the checks judge the reports.
Exit status: 0 no check failed, 1 a check failed, 2 wrong command line.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.arguments import Parser, add_place, exit_status, option, parse
from configs.errors import UserError


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh doctor``; an acceptance asks by it, too, and has ``accept_s`` for the samples."""

    cluster: str | None
    overrides: Sequence[str]
    recipe: str | None = option("also check its data set, and the memory and disk of its plan", metavar="R")
    step: bool = option(
        "also take real steps of the recipe on every rank: times, memory, slow nodes (less than two minutes)",
        default=False,
    )
    times: int = option(
        "with --step, look for slow nodes N times, and tell how often each was named", 1, metavar="N", type=int
    )
    hosts: str | None = option("start the ranks on these hosts (node1,node2, node[1-8] or @FILE)", metavar="LIST")
    run: Path | None = option(
        "also check the job's spare nodes, and write the scores of all nodes into this run folder",
        metavar="RUN",
        type=Path,
    )
    json: bool = option("print the results and all reports of the ranks as JSON", default=False)
    accept_s: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the cluster and print the results.

    Returns:
        The exit status: 0, 1 if a check FAILs, or see `configs.arguments.exit_status`.

    Raises:
        SystemExit: Signal n stopped the ranks; the status is 128 + n.
    """
    parser = Parser(prog="./run.sh doctor", description=__doc__)
    add_place(parser)
    return exit_status(lambda: _examine(parse(parser, Options, arguments)))


def _examine(options: Options) -> int:
    # Imported here, so that --help works before anything is installed.
    from configs.reading import entries, is_folder
    from launch.doctor.examination import examine
    from launch.doctor.ranking import count_alarms
    from logs.folder import CONFIG_FILE, RunFolder
    from logs.nodes import write_nodes

    if options.step and options.recipe is None:
        raise UserError("--step: got no recipe; name one with --recipe")
    if options.times < 1 or (options.times > 1 and not options.step):
        raise UserError(f"--times: got {options.times}, allowed: 1 or more, and more than 1 with --step only")
    # A rehearsal of nodes that are left out gives an empty folder.
    run = options.run
    if run is not None and (not is_folder(run) or entries(run)) and not RunFolder(run).is_begun:
        raise UserError(f"--run: got {run}, which contains no {CONFIG_FILE}; give a run folder")
    found = examine(options)
    if options.run is not None:
        write_nodes(options.run, found.nodes)
    if options.json:
        document = {
            "cluster": found.cluster.name,
            "recipe": options.recipe,
            "ok": not found.has_failed,
            "findings": [asdict(result) for result in found.results],
            "nodes": [asdict(node) for node in found.nodes],
            "ranks": [asdict(rank) for rank in found.ranks],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{result}\n" for result in found.results))
        if options.times > 1 and found.checks:
            sys.stdout.write(count_alarms(found.checks))
    return int(found.has_failed and not (options.run and found.is_runnable))


if __name__ == "__main__":
    sys.exit(main())
