"""``./run.sh rehearse``: a whole run on this machine, with waits in place of arithmetic.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import Parser
from configs.errors import UserError
from configs.programs import Program, command_of

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe


_CAVEAT = "The accuracies are invented: this run is a rehearsal and no result."
_MOST_OVER_GLOO = 8
"""Gloo sums in a ring, which takes 2 (N - 1) messages a rank, and MPI in a tree: with 64 ranks on two cores, a step of
the record takes 2.4 s over Gloo and 0.3 s over MPI."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse a recipe.

    Args:
        arguments: The words after ``./run.sh``; the first one may be the verb ``rehearse``. If None, `sys.argv` holds
            them.

    Returns:
        The exit status of the rehearsed run, or 2 if the arguments are wrong or the recipe does not fit.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["rehearse"] :])
        return _rehearse(options)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _rehearse(options: argparse.Namespace) -> int:
    from configs.load import load_both, resolve_path  # noqa: PLC0415
    from logs.disk import write_text  # noqa: PLC0415
    from logs.folder import REHEARSAL_FILE  # noqa: PLC0415
    from train.rehearse.rehearsal_text import (  # noqa: PLC0415
        comparison_text,
        course_text,
        described_step,
        rehearsed_steps,
        validation_text,
    )

    described = load_both(options.recipe, options.cluster, options.overrides)
    if options.config:
        _write_job_config(described, options)
        return 0
    if options.ranks is None:
        raise UserError("--ranks: got nothing, allowed: the number of processes on this machine")
    runs = [_rehearsed(described, options, ranks) for ranks in _numbers_of_ranks(options)]
    recipe, cluster = runs[-1]
    folder = Path(options.run_dir) if options.run_dir else _new_folder(resolve_path(cluster.paths.runs), recipe.name)
    rows = []
    for recipe, cluster in runs:
        part = folder / f"ranks-{cluster.world_size}" if options.validate else folder
        if status := _run(recipe, cluster, part):
            return status
        compared = comparison_text(part, cluster, described_step(*described))
        write_text(part / REHEARSAL_FILE, compared)
        sys.stdout.write(f"{compared}{course_text(part)}{_CAVEAT}\n")
        rows.append(rehearsed_steps(part, cluster))
    if options.validate:
        sys.stdout.write(validation_text(rows))
    return 0


def _write_job_config(described: tuple[Recipe, Cluster], options: argparse.Namespace) -> None:
    """Write the config of the rehearsal on the cluster's own nodes."""
    from configs.load import dump  # noqa: PLC0415
    from train.rehearse.rehearsed_run import rehearsed_job  # noqa: PLC0415

    shrink = 1 if options.shrink is None else options.shrink
    run = rehearsed_job(*described, shrink=shrink, speed=options.speed, slow_ranks=options.slow, faults=options.fail)
    options.config.write_text(dump(*run), encoding="utf-8")


def _numbers_of_ranks(options: argparse.Namespace) -> list[int]:
    """Return the numbers of ranks to rehearse with: --ranks; to validate also 2, 4, 8 and so on below."""
    if not options.validate:
        return [options.ranks]
    if options.nodes > 1:
        raise UserError("--validate: got --nodes above 1, allowed: one node")
    return [*(1 << power for power in range(1, 20) if 1 << power < options.ranks), options.ranks]


def _rehearsed(described: tuple[Recipe, Cluster], options: argparse.Namespace, ranks: int) -> tuple[Recipe, Cluster]:
    from train.rehearse.rehearsed_run import rehearsed_run  # noqa: PLC0415

    return rehearsed_run(
        *described,
        ranks=ranks,
        nodes=options.nodes,
        launcher=options.launcher or _usual_launcher(ranks),
        shrink=256 if options.shrink is None else options.shrink,
        speed=options.speed,
        slow_ranks=options.slow,
        faults=options.fail,
    )


def _usual_launcher(ranks: int) -> str:
    """Return the launcher for a number of ranks, if the user names none."""
    return "mpirun" if ranks > _MOST_OVER_GLOO and shutil.which("mpirun") else "local"


def _run(recipe: Recipe, cluster: Cluster, folder: Path) -> int:
    from configs.load import dump  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(dump(recipe, cluster), encoding="utf-8")
        command = command_of(Program.TRAIN_VERB, "train", str(config), "--run-dir", str(folder))
        return subprocess.run(command, check=False).returncode


def _new_folder(runs: Path, recipe: str) -> Path:
    """Return the path of a new run folder."""
    return runs / f"rehearsal-{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh rehearse",
        description="Run RECIPE on this machine as on the ranks of cluster C: real processes, launcher, communication, "
        "schedule, logs and checkpoints, and waits in place of arithmetic. The accuracies are invented.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name in configs/recipes or a YAML file")
    parser.add_argument("--cluster", metavar="C", required=True, help="the described machine: a name or a YAML file")
    parser.add_argument("--ranks", metavar="N", type=int, help="processes on this machine")
    parser.add_argument("--nodes", metavar="N", type=int, default=1, help="nodes of the launcher srun (default: 1)")
    parser.add_argument(
        "--launcher",
        choices=["local", "horovodrun", "mpirun", "srun"],
        help=f"default: local; mpirun for more than {_MOST_OVER_GLOO} ranks, if it is installed",
    )
    parser.add_argument(
        "--shrink", metavar="F", type=int, help="tensors are F times shorter than real (default: 256; in a job: 1)"
    )
    parser.add_argument(
        "--speed", metavar="S", type=float, default=1.0, help="waits are S times shorter than real (default: 1)"
    )
    parser.add_argument("--slow", metavar="RANK:FACTOR", action="append", default=[], help="a slow rank; repeatable")
    parser.add_argument(
        "--fail",
        metavar="WHAT@STEP:RANK",
        action="append",
        default=[],
        help="a fault on purpose before a step: kill, silence, notice, error, slow, link or disk; repeatable",
    )
    parser.add_argument(
        "--validate",
        action="store_true",
        help="rehearse with 2, 4, 8, ... up to N ranks; print predictions beside them",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="run nothing; write the config of a job, as submit --rehearse does"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run folder (default: a new one in runs)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help="as for train; repeatable"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
