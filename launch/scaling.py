"""The runs of a scaling study: what is there is kept, what is missing is run, what does not fit is predicted.

A cell that was measured is never run again, and one that was cut off leaves nothing: each repeat is an ordinary run
in a folder of its own, which counts from the moment its summary is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT, dump, load_run
from configs.scaling import ScalingCell, ScalingStudy
from configs.schema import Cluster, Recipe
from launch.run import launch_run
from logs.cells import PREDICTION_FILE, Row, measured, predicted
from logs.disk import explain_disk_errors, write_text
from logs.folder import CONFIG_FILE, SUMMARY_FILE, read_summary
from logs.scaling import write_scaling

__all__ = ["Runner", "run_scaling"]

Runner = Callable[[Recipe, Cluster, Path], int]
"""Runs a cell to its end, or hands it to a scheduler; gives an exit status, 128 + n when a signal stopped it."""

_REFUSED, _SIGNALLED = 2, 128
_SIMULATOR = [sys.executable, "-I", "-m", "train.sim", "simulate"]
_DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
"""Where the simulator looks for what it measured of this machine."""


@dataclass(frozen=True)
class _Task:
    """One repeat of a cell, or its prediction."""

    cell: ScalingCell
    repeat: int
    is_predicted: bool
    recipe: Recipe
    cluster: Cluster
    folder: Path

    def row(self, warmup_steps: int) -> Row | None:
        """Give what is known of it; none: it is still to be run.

        Raises:
            UserError: The folder holds another run.
        """
        config = self.folder / CONFIG_FILE
        if not config.is_file():
            return None
        if load_run(config) != (self.recipe, self.cluster):
            raise UserError(
                f"{self.folder}: ran with other settings than the study has now; remove it, or give other --runs"
            )
        if self.is_predicted:
            there = (self.folder / PREDICTION_FILE).is_file()
            return predicted(self.cell, self.folder, self.recipe.data.train_samples) if there else None
        there = (self.folder / SUMMARY_FILE).is_file() and read_summary(self.folder).status == "success"
        return measured(self.cell, self.repeat, self.folder, warmup_steps) if there else None


def run_scaling(study: ScalingStudy, runs: Path, output: Path, *, dry: bool, run: Runner = launch_run) -> int:
    """Run a study, or show what of it is done; its table is up to date after each cell.

    Args:
        study: The grid.
        runs: Folder of the runs' folders.
        output: Folder of the table and the page.
        dry: Only list the cells.
        run: What runs a cell.

    Returns:
        0, 1 when a cell failed (the others are run all the same), 128 + n when a signal stopped it.

    Raises:
        UserError: A folder holds another run, or a cell was refused.
    """
    tasks = list(_tasks(study, runs))
    if not dry and any(task.is_predicted and task.cluster.device == "cpu" for task in tasks):
        _describe_machine()
    rows: list[Row] = []
    failed = 0
    for number, task in enumerate(tasks, start=1):
        row = task.row(study.warmup_steps)
        _tell(f"{number:4}/{len(tasks)}  {task.folder.name:48}  {_known(task, row)}")
        if row is None and not dry:
            status = _predict(task) if task.is_predicted else _measure(task, run)
            if status > _SIGNALLED:
                return status
            row = task.row(study.warmup_steps)
            if row is None:
                failed += 1
                row = Row(*task.cell.axes, task.repeat, "predicted" if task.is_predicted else "measured", "failed")
        if row is not None:
            rows.append(row)
            if not dry:
                write_scaling(study, rows, output)
    return 1 if failed else 0


def _tasks(study: ScalingStudy, runs: Path) -> Iterator[_Task]:
    """Predictions first, which take no time; then every cell once, then every cell again."""
    place, cells = study.place(), list(study.cells())
    fitting = {cell: _fits(study.load(cell)[1], place) for cell in cells}
    for cell in cells:
        # The simulator times steps that wait for each other.
        if not fitting[cell] and study.load(cell)[1].communication.kind != "parameter_server_async":
            yield _Task(cell, 0, True, *study.load(cell), runs / f"{cell.name}-predicted")
    for repeat in range(study.repeats):
        for cell in cells:
            if fitting[cell]:
                yield _Task(cell, repeat, False, *study.load(cell, repeat), runs / f"{cell.name}-{repeat + 1}")


def _fits(cluster: Cluster, place: Cluster) -> bool:
    """Tell whether the machines that there are can run a cell: a core for each thread, or a GPU a rank."""
    if place.device == "cpu" and place.launcher == "local":
        return cluster.world_size * cluster.engine.threads <= len(os.sched_getaffinity(0))
    return cluster.world_size <= place.world_size


def _known(task: _Task, row: Row | None) -> str:
    if row is None or row.images_per_s is None:
        return "to predict" if task.is_predicted else "to run"
    return f"{row.images_per_s:,.1f} images/s" + (" predicted" if task.is_predicted else "")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _measure(task: _Task, run: Runner) -> int:
    if task.folder.exists():
        shutil.rmtree(task.folder)  # what an interrupted run of this very cell left
    status = run(task.recipe, task.cluster, task.folder)
    if status == _REFUSED:
        raise UserError(f"{task.folder.name}: was refused (see above); mend the study, what is measured is kept")
    return status


def _describe_machine() -> None:
    """Have the simulator measure this machine once: predictions for CPUs follow from that."""
    if not _DESCRIPTION.is_file():
        subprocess.run([*_SIMULATOR, "--calibrate-here", "--out", str(_DESCRIPTION)], cwd=ROOT, check=False)


def _predict(task: _Task) -> int:
    """Ask the simulator, which `launch` runs but never imports; its answer counts once it is whole."""
    with explain_disk_errors(task.folder):
        task.folder.mkdir(parents=True, exist_ok=True)
    config = task.folder / CONFIG_FILE
    write_text(config, dump(task.recipe, task.cluster))
    communication = task.cluster.communication
    command = [*_SIMULATOR, str(config.absolute()), "--json"]
    if communication.kind == "parameter_server":
        command += ["--algorithm", f"ps:{communication.servers}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        write_text(task.folder / PREDICTION_FILE, done.stdout)
    return done.returncode
