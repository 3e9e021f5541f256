"""Start real jobs of several ranks as a user would, and pack the images that they read."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.load import ROOT, resolve_path
from configs.programs import Program, command_of
from configs.registry import packing_words
from configs.schema import Cluster, Recipe
from train.bench.measure import MeasurementFailed

_TAIL_LINES = 12
"""Lines of a failed job's output that the message shows."""


def is_local_cpu(cluster: Cluster) -> bool:
    """Return whether a cluster is the CPU of one machine, whose ranks this program starts by itself."""
    return cluster.launcher == "local" and cluster.device == "cpu"


def run_ranks(
    command: Sequence[str],
    *,
    cluster: str = "laptop",
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Start ``command`` once for each rank, with the environment of a run's ranks, and wait until all have ended.

    Args:
        command: A program that reads rank and size by `train.rank.identity`; see `configs.programs.command_of`.
        cluster: A name in configs/clusters or a YAML file.
        overrides: Changes of the cluster, each ``cluster.key=value``.
        environment: Variables to add to those of this process.
        timeout_s: Seconds that the ranks may take; if None, any.

    Returns:
        The output of all ranks, mixed as it came.

    Raises:
        MeasurementFailed: A rank failed; the text has the last lines of the output.
    """
    sets = [word for override in overrides for word in ("--set", override)]
    return run(command_of(Program.RANKS_LAUNCHER, "--cluster", cluster, *sets, "--", *command), environment, timeout_s)


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float | None = None) -> str:
    """Run a program in the folder of this program, and return what it writes.

    Args:
        command: The command line.
        environment: Variables to add to those of this process.
        timeout_s: Seconds that the program may take; if None, any.

    Raises:
        MeasurementFailed: The time is over, or the exit status is not 0; the text has the last lines of the output.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"{' '.join(command)} took more than {timeout_s:g} s") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise MeasurementFailed(f"{' '.join(command)} ended with exit status {done.returncode}:\n{tail}")
    return done.stdout


def pack_dataset(recipe: Recipe, cluster: Cluster) -> Path:
    """Return the folder of a recipe's built-in data set; pack the data set first if it is not there yet.

    Raises:
        MeasurementFailed: The data set cannot be packed.
    """
    data, classes = recipe.data, recipe.model.num_classes
    folder = resolve_path(cluster.paths.data) / data.name
    if not (folder / "manifest.json").is_file():
        words = packing_words(
            data.source, str(folder), train=data.train_samples, eval=data.eval_samples, classes=classes
        )
        run(command_of(Program.PREPARE_VERB, "prepare", *words))
    return folder
