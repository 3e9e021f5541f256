"""``./run.sh submit RECIPE --cluster C``: make the run folders, write the job script into them, and submit it.

``--resume``, ``--status`` and ``--cancel`` take the folder of a run that was submitted.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit a job, or print the script and the command with ``--dry-run``.

    Args:
        arguments: The words of the command line, with or without the verb. If None, the process's own.

    Returns:
        The exit status: 0, or 2 if nothing was submitted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _submit(_parser().parse_args(words[words[:1] == ["submit"] :]))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> Parser:
    parser = Parser(prog="./run.sh submit", description=__doc__)
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", help="a name in configs/recipes, a YAML file, a run's config.yaml"
    )
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file")
    overrides = "change a value of the recipe or, as cluster.KEY, of the cluster; repeatable"
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=overrides)
    parser.add_argument("--run-dir", metavar="DIR", type=Path, help="the run's folder (default: runs/RECIPE-DATE-TIME)")
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="N runs with N seeds in one job")
    parser.add_argument(
        "--hosts", metavar="A,B", help="machines, for a cluster without a scheduler; more than num_nodes: spares"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="rehearse the job on its own nodes, with waits in place of arithmetic"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the script and the command; make nothing")
    submitted = parser.add_mutually_exclusive_group()
    again = "submit the job script of the unfinished run in this folder again, to continue the run"
    submitted.add_argument("--resume", metavar="RUN", type=Path, help=again)
    stands = "print how the job of this run stands: scheduler, owner of the folder, newest checkpoint"
    submitted.add_argument("--status", metavar="RUN", type=Path, help=stands)
    submitted.add_argument("--cancel", metavar="RUN", type=Path, help="ask the scheduler to end the job of this run")
    return parser


def _submit(options: Namespace) -> None:
    # Imported here, so that --help works before anything is installed.
    if folder := options.resume or options.status or options.cancel:
        _act_on_submitted(options, folder.absolute())
        return
    if options.recipe is None or options.cluster is None:
        raise UserError("give RECIPE and --cluster C, or --resume, --status or --cancel with a run; see --help")
    from configs.load import load_both
    from configs.plan import plan_run
    from launch.run import new_folder
    from launch.submit.requirements import require_memory, require_submittable
    from launch.submit.scheduler import render
    from launch.submit.submission import make_job, submit_command, submit_job
    from train.rehearse.rehearsed_run import Course, rehearsed_job

    recipe, cluster = load_both(options.recipe, options.cluster, options.overrides)
    if options.rehearse:
        recipe, cluster = rehearsed_job(recipe, cluster, Course(shrink=1))
    hosts = tuple(options.hosts.split(",")) if options.hosts else ()
    require_submittable(cluster, hosts)
    plan_run(recipe, cluster.world_size)
    require_memory(options.recipe, options.cluster, options.overrides, cluster)
    folders = _run_folders(options.run_dir or new_folder(recipe, cluster), options.repeat)
    spec = make_job(recipe, cluster, hosts, folders)
    if options.dry_run:
        sys.stdout.write(f"{render(spec)}\n# {submit_command(spec)}\n")
    else:
        submit_job(recipe, spec)


def _act_on_submitted(options: Namespace, folder: Path) -> None:
    from launch.submit.submission import resubmit
    from launch.submit.submitted import cancel, status

    if options.recipe or options.cluster or options.overrides or options.run_dir or options.hosts or options.dry_run:
        raise UserError("--resume, --status and --cancel stand alone: the run's folder says the rest")
    if options.resume:
        resubmit(folder)
    else:
        sys.stdout.write(status(folder) if options.status else cancel(folder))


def _run_folders(folder: Path, repeat: int) -> tuple[Path, ...]:
    """Return the folders of ``repeat`` runs: ``folder`` itself for one run, else numbered folders beside it."""
    if repeat < 1:
        raise UserError(f"--repeat: got {repeat}, allowed: 1 or more")
    folder = folder.absolute()
    return (folder,) if repeat == 1 else tuple(Path(f"{folder}-{number}") for number in range(1, repeat + 1))


if __name__ == "__main__":
    sys.exit(main())
