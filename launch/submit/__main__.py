"""Create the run folders of a job, write the job script into them, and submit it.

--resume, --status and --cancel take the folder of a submitted run.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.arguments import Parser, add_from, add_place, add_recipe, exit_status, option, parse
from configs.errors import UserError


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The command line of ``./run.sh submit``."""

    recipe: str | None
    cluster: str | None
    overrides: list[str]
    start_from: Path | None
    run_dir: Path | None = option("the run's folder (default: runs/RECIPE-DATE-TIME)", metavar="DIR", type=Path)
    repeat: int = option("N runs with N seeds in one job", 1, metavar="N", type=int)
    hosts: str | None = option(
        "hosts, for a cluster without a scheduler, also as node[1-4] or @FILE; hosts beyond num_nodes are spares",
        metavar="A,B",
    )
    rehearse: bool = option("rehearse the job on its own nodes: ranks sleep instead of compute", default=False)
    accept: float | None = option(
        "accept the nodes (./run.sh accept) for so many minutes (default: 2) instead of training; needs no RECIPE",
        metavar="MINUTES",
        type=float,
        nargs="?",
        const=2.0,
    )
    dry_run: bool = option("print the script and the command; submit nothing", default=False)
    resume: Path | None = option(
        "submit the job script of the unfinished run in this folder again, to continue the run",
        metavar="RUN",
        type=Path,
    )
    status: Path | None = option(
        "print the status of this run's job: scheduler, owner of the folder, newest checkpoint",
        metavar="RUN",
        type=Path,
    )
    cancel: Path | None = option("ask the scheduler to end the job of this run", metavar="RUN", type=Path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit a job, or print the script and the command with ``--dry-run``.

    Returns:
        The exit status: 0, 2 if nothing was submitted, or see `configs.arguments.exit_status`.
    """
    parser = Parser(prog="./run.sh submit", description=__doc__)
    add_recipe(parser, is_optional=True)
    add_place(parser, default_name=None)
    add_from(parser)
    return exit_status(lambda: _submit(parse(parser, _Options, arguments)))


def _submit(options: _Options) -> int:
    if submitted := [folder for folder in (options.resume, options.status, options.cancel) if folder]:
        return _act_on_submitted(options, *submitted)
    if options.cluster is None or (options.recipe is None and options.accept is None):
        raise UserError("give RECIPE and --cluster C, or --resume, --status or --cancel with a run; see --help")
    # Imported here, so that --help works before anything is installed.
    from launch.accept.settings import load_settings, require_minutes
    from launch.submit.hosts import parse_hosts
    from launch.submit.script import job_text
    from launch.submit.submission import make_job, submit_command, submit_job
    from logs.folder import RunFolder
    from logs.weights import starting_weights
    from train.rehearse.rehearsed_run import rehearsed_job

    overrides = [*starting_weights(options.start_from), *options.overrides]
    recipe, cluster = load_settings(options.recipe, options.cluster, overrides)
    if options.accept is not None:
        require_minutes("--accept", options.accept)
        scheduler = cluster.scheduler.model_copy(update={"spare_nodes": 0})
        cluster = cluster.model_copy(update={"scheduler": scheduler})
    if options.rehearse:
        recipe, cluster = rehearsed_job(recipe, cluster)
    hosts = () if options.hosts is None else parse_hosts(options.hosts)
    folders = _run_folders(options.run_dir or RunFolder.new(recipe, cluster).path, options.repeat)
    spec = make_job(recipe, cluster, hosts, folders, accept_minutes=options.accept)
    if options.dry_run:
        for folder in folders:
            RunFolder(folder).require_free()
        sys.stdout.write(f"{job_text(spec)}\n# {submit_command(spec)}\n")
    else:
        submit_job(recipe, spec)
    return 0


def _act_on_submitted(options: _Options, folder: Path, *other: Path) -> int:
    from launch.submit.submission import cancel, resubmit, status
    from logs.folder import RunFolder

    others = (options.recipe, options.cluster, options.overrides, options.run_dir, options.hosts, options.start_from)
    if other or any(others) or options.dry_run:
        raise UserError("--resume, --status and --cancel take no other option: the run folder has all settings")
    run = RunFolder(folder.absolute())
    if options.resume:
        resubmit(run)
    else:
        sys.stdout.write(status(run) if options.status else cancel(run))
    return 0


def _run_folders(folder: Path, repeat: int) -> tuple[Path, ...]:
    """Return the folders of ``repeat`` runs: ``folder`` itself for one run, else numbered folders beside it."""
    if repeat < 1:
        raise UserError(f"--repeat: got {repeat}, allowed: 1 or more")
    folder = folder.absolute()
    return (folder,) if repeat == 1 else tuple(Path(f"{folder}-{number}") for number in range(1, repeat + 1))


if __name__ == "__main__":
    sys.exit(main())
