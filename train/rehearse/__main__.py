"""``./run.sh rehearse``: a whole run on this machine, with waits in place of arithmetic.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from configs.programs import Program, command_of

__all__ = ["main"]


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
    from configs.load import dump, load_both, resolve_path  # noqa: PLC0415
    from train.rehearse.rehearsal_text import comparison_text, described_step  # noqa: PLC0415
    from train.rehearse.rehearsed_run import rehearsed_run  # noqa: PLC0415

    described = load_both(options.recipe, options.cluster, options.overrides)
    recipe, cluster = rehearsed_run(
        *described,
        ranks=options.ranks,
        nodes=options.nodes,
        launcher=options.launcher,
        shrink=options.shrink,
        speed=options.speed,
        slow_ranks=options.slow,
        faults=options.fail,
    )
    folder = Path(options.run_dir) if options.run_dir else _new_folder(resolve_path(cluster.paths.runs), recipe.name)
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(dump(recipe, cluster), encoding="utf-8")
        command = command_of(Program.TRAIN_VERB, "train", str(config), "--run-dir", str(folder))
        status = subprocess.run(command, check=False).returncode
    if status == 0:
        sys.stdout.write(comparison_text(folder, cluster, described_step(*described)))
    return status


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
    parser.add_argument("--ranks", metavar="N", type=int, required=True, help="processes on this machine")
    parser.add_argument("--nodes", metavar="N", type=int, default=1, help="nodes of the launcher srun (default: 1)")
    parser.add_argument(
        "--launcher", choices=["local", "horovodrun", "mpirun", "srun"], default="local", help="default: local"
    )
    parser.add_argument(
        "--shrink", metavar="F", type=int, default=256, help="tensors are F times shorter than real (default: 256)"
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
        help="a fault on purpose: kill, silence, notice or error; repeatable",
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run folder (default: a new one in runs)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help="as for train; repeatable"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
