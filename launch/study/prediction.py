"""Predictions for cells of a scaling study that this machine cannot run, by the simulator as a separate process."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from configs.load import ROOT, dump
from configs.programs import Program, command_of
from configs.scaling_study import ScalingCell
from configs.schema import Cluster, Recipe
from launch.study.cell_run import require_same_settings
from logs.disk import explain_disk_errors, write_text
from logs.folder import CONFIG_FILE
from logs.study.cells import PREDICTION_FILE, ScalingRow, predicted

_SIMULATOR = command_of(Program.SIMULATE_VERB, "simulate")
_DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
"""Where the simulator keeps what it measured of this machine."""


@dataclass(frozen=True)
class Prediction:
    """A prediction for cells that differ only in their number of ranks.

    The cells include those that are measured as well, so that the page can show the simulator's error.

    Attributes:
        cells: The cells.
        recipe: The recipe of the cell with the most ranks.
        cluster: The cluster of that cell.
        folder: Where the prediction is kept.
    """

    cells: tuple[ScalingCell, ...]
    recipe: Recipe
    cluster: Cluster
    folder: Path

    def read(self) -> list[ScalingRow] | None:
        """Return the predicted rows, or None if nothing was predicted yet.

        Raises:
            UserError: The folder holds a prediction with other settings.
        """
        is_known = require_same_settings(self.folder, self.recipe, self.cluster)
        if not is_known or not (self.folder / PREDICTION_FILE).is_file():
            return None
        return predicted(self.cells, self.folder, self.recipe.data.train_samples)

    def start(self) -> int:
        """Run the simulator and return its exit status. The prediction is written in one piece, once it is complete."""
        if self.cluster.device == "cpu" and not _DESCRIPTION.is_file():
            subprocess.run([*_SIMULATOR, "--calibrate-here"], cwd=ROOT, check=False)
        with explain_disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / CONFIG_FILE
        write_text(config, dump(self.recipe, self.cluster))
        ranks = ",".join(str(cell.ranks) for cell in self.cells)
        command = [*_SIMULATOR, str(config.absolute()), "--json", "--sweep", f"ranks={ranks}"]
        communication = self.cluster.communication
        if communication.kind == "parameter_server":
            command += ["--algorithm", f"ps:{communication.servers}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            write_text(self.folder / PREDICTION_FILE, done.stdout)
        return done.returncode

    def describe(self, result: list[ScalingRow] | None) -> str:
        """Return for how many ranks the simulator has predicted, or is to predict, a rate."""
        ranks = ", ".join(str(cell.ranks) for cell in self.cells)
        return f"{'to predict' if result is None else 'predicted'} for {ranks} ranks"

    def failure(self) -> list[ScalingRow]:
        """Return no rows: a prediction that failed leaves no trace in the table."""
        return []
