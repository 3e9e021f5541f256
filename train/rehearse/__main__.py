"""``./run.sh rehearse``: a whole run on this machine, in which ranks sleep instead of computing.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import Parser, add_place, add_recipe, exit_status, option, parse
from configs.errors import UserError
from configs.outputs import guard_outputs
from configs.programs import Program, command_of

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe


def _slow_rank(text: str) -> tuple[str, float]:
    place, _, factor = text.rpartition(":")
    return place, float(factor)


_slow_rank.__name__ = "RANK:FACTOR"  # as argparse names the type of a value that it refuses
_CAVEAT = "The accuracies are invented: this run is a rehearsal, not a result."
_MOST_OVER_GLOO = 8
"""Gloo sums in a ring, which takes 2 (N - 1) messages a rank, and MPI in a tree: with 64 ranks on two cores, a step of
the record takes 2.4 s over Gloo and 0.3 s over MPI."""


@dataclass(frozen=True)
class _Options:
    """The command line of ``./run.sh rehearse``."""

    recipe: str
    cluster: str | None
    overrides: list[str]
    ranks: int | None = option("ranks on this machine", metavar="N", type=int)
    nodes: int = option("nodes, with launcher srun", 1, metavar="N", type=int)
    launcher: str | None = option(
        f"default: local; mpirun to train on more than {_MOST_OVER_GLOO} ranks, if it and a Horovod with MPI are here",
        choices=["local", "horovodrun", "mpirun", "srun"],
    )
    shrink: int = option("tensors are F times smaller than the real ones", 256, metavar="F", type=int)
    speed: float = option("sleeps are S times shorter than the real compute", 1.0, metavar="S", type=float)
    slow: list[tuple[str, float]] | None = option(
        "make a rank slower by this factor, or with --accept its copies or its link (3:copy:1.2, 3:link:1.3); "
        "repeatable",
        metavar="RANK:FACTOR",
        action="append",
        type=_slow_rank,
    )
    noise: float = option("standard deviation of every wait, as a share of it", 0.0, metavar="SHARE", type=float)
    fail: list[str] | None = option(
        "inject a fault before a step: kill, silence, notice, error, slow, link or disk; repeatable",
        metavar="WHAT@STEP:RANK",
        action="append",
    )
    check: int | None = option(
        "rehearse the check of ./run.sh doctor --step instead, in which each rank is a node of its own: which nodes "
        "were named how often",
        metavar="TIMES",
        type=int,
        nargs="?",
        const=1,
    )
    accept: float | None = option(
        "rehearse ./run.sh accept instead (default: 2 minutes); each rank is a node, the outputs go to --run-dir",
        metavar="MINUTES",
        type=float,
        nargs="?",
        const=2.0,
    )
    run_dir: Path | None = option("the run folder (default: a new one in runs)", metavar="DIR", type=Path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse a recipe; return the status of the rehearsed run, or see `configs.arguments.exit_status`."""
    parser = Parser(
        prog="./run.sh rehearse",
        description="Run RECIPE on this machine as it would run on cluster C: with real processes, launcher, "
        "communication, schedule, logs and checkpoints, but sleeps instead of compute. The accuracies are invented.",
    )
    add_recipe(parser)
    add_place(parser, default_name=None)
    return exit_status(lambda: _rehearse(parse(parser, _Options, arguments)))


def _rehearse(options: _Options) -> int:
    from configs.load import load_both, resolve_path
    from configs.registry import horovod_has_mpi
    from train.rehearse.rehearsed_run import outcome_text, rehearsed_run

    if options.cluster is None:
        raise UserError("--cluster: got nothing, allowed: the described machine; see ./run.sh rehearse --help")
    described = load_both(options.recipe, options.cluster, options.overrides)
    if options.ranks is None:
        raise UserError("--ranks: got nothing, allowed: the number of ranks on this machine")
    course = {
        **{name: getattr(options, name) for name in ("shrink", "speed", "noise")},
        "slow_ranks": dict(options.slow or ()),
        "faults": options.fail or [],
    }
    times_own_work = options.check is not None or options.accept is not None
    is_large = options.ranks > _MOST_OVER_GLOO and not times_own_work
    has_mpi = is_large and shutil.which("mpirun") and horovod_has_mpi()
    launcher = options.launcher or ("mpirun" if has_mpi else "local")
    recipe, cluster = rehearsed_run(
        *described,
        course,
        ranks=options.ranks,
        nodes=options.nodes,
        launcher=launcher,
        times_own_work=times_own_work,
    )
    if options.check is not None:
        words = ["--step", "--times", str(options.check)]
        return _start(recipe, cluster, Program.DOCTOR_VERB, ["doctor", "--recipe"], words)
    if options.accept is not None:
        words = ["--minutes", str(options.accept), *(["--out", str(options.run_dir)] if options.run_dir else [])]
        return _start(recipe, cluster, Program.ACCEPT_VERB, ["accept", "--recipe"], words)
    if cluster.scheduler.spare_nodes:
        cluster, status = _without_slow_ranks(recipe, cluster)
        if status:
            return status
    name = f"rehearsal-{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = options.run_dir or resolve_path(cluster.paths.runs) / name
    if status := _start(recipe, cluster, Program.TRAIN_VERB, ["train"], ["--run-dir", str(folder)]):
        return status
    sys.stdout.write(f"{outcome_text(folder, cluster, *described)}{_CAVEAT}\n")
    return 0


def _without_slow_ranks(recipe: "Recipe", cluster: "Cluster") -> tuple["Cluster", int]:
    """Check the ranks and the spare ones; return the cluster without the slowest ones, and the status of the check."""
    from logs.nodes import read_nodes
    from train.rehearse.rehearsed_run import without_slow_ranks

    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        status = _start(recipe, cluster, Program.DOCTOR_VERB, ["doctor", "--recipe"], ["--step", "--run", temporary])
        cluster, why = without_slow_ranks(cluster, read_nodes(Path(temporary)))
    for words in why:
        sys.stdout.write(f"left out: {words}\n")
    return cluster, status


def _start(recipe: "Recipe", cluster: "Cluster", program: Program, before: list[str], after: list[str]) -> int:
    """Start a program with a file of recipe and cluster between its words; return its status."""
    from configs.interrupts import run_child
    from configs.load import dump

    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(dump(recipe, cluster), encoding="utf-8")
        return run_child(command_of(program, *before, str(config), *after))


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
