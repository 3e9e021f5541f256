"""The rehearsal of a job: the same script through the scheduler, with waits in place of arithmetic."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from configs.load import load_run
from configs.programs import Program, command_of
from configs.schema import Cluster, Recipe


def rehearsed(recipe: str, cluster: str, overrides: Sequence[str]) -> tuple[Recipe, Cluster]:
    """Return the recipe and the cluster of the rehearsal, which ``./run.sh rehearse`` writes.

    Args:
        recipe: The recipe's name or file.
        cluster: The cluster's name or file.
        overrides: The texts of ``--set``.

    Raises:
        UserError: The simulator does not know the described machine.
    """
    sets = [word for override in overrides for word in ("--set", override)]
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        config = Path(folder) / "config.yaml"
        command = command_of(Program.REHEARSE_VERB, recipe, "--cluster", cluster, "--config", str(config), *sets)
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise UserError(done.stderr.strip().removeprefix("error: "))
        return load_run(config)
