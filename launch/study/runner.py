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
from dataclasses import dataclass, replace
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT, dump, load_run, resolve_path, with_resolved_paths
from configs.programs import Program, command_of
from configs.scaling_study import ScalingCell, ScalingStudy
from configs.schema import Cluster, Recipe
from launch.run import pack
from launch.start.link import NO_LINK, can_shape
from logs.disk import explain_disk_errors, write_text
from logs.folder import CONFIG_FILE, SUMMARY_FILE, read_summary
from logs.study.cells import PREDICTION_FILE, Row, measured, predicted
from logs.study.expectations import compare, verdict
from logs.study.scaling_page import write_scaling_page
from logs.study.scaling_table import write_scaling

__all__ = ["Runner", "run_scaling"]

Runner = Callable[[Recipe, Cluster, Path], int | None]
"""Runs a cell to its end and gives the exit status, 128 + n when a signal stopped it; None: a scheduler has it now."""

_REFUSED, _SIGNALLED = 2, 128
_SIMULATOR = command_of(Program.SIMULATE_VERB, "simulate")
_DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
"""Where the simulator looks for what it measured of this machine."""


@dataclass(frozen=True)
class _Measurement:
    """One repeat of a cell."""

    cell: ScalingCell
    repeat: int
    recipe: Recipe
    cluster: Cluster
    folder: Path
    warmup_steps: int
    run: Runner

    def rows(self) -> list[Row]:
        """Give what is known of it; none: it is still to be run.

        Raises:
            UserError: The folder holds another run.
        """
        done = _is_same(self.folder, self.recipe, self.cluster) and (self.folder / SUMMARY_FILE).is_file()
        if not done or read_summary(self.folder).status != "success":
            return []
        return [measured(self.cell, self.repeat, self.folder, self.warmup_steps)]

    @property
    def ticket(self) -> Path:
        """The mark of a cell that a scheduler has: beside its folder, which the job finds empty."""
        return self.folder.with_name(f"{self.folder.name}.submitted")

    def start(self) -> int | None:
        """Run it; gives the exit status, none where it waits in a queue.

        Raises:
            UserError: It was refused.
        """
        if self.ticket.exists():
            # A job that ended without success is not handed over again unasked.
            return 1 if (self.folder / SUMMARY_FILE).is_file() else None
        if self.folder.exists():
            shutil.rmtree(self.folder)  # what an interrupted run of this very cell left
        status = self.run(self.recipe, self.cluster, self.folder)
        if status is None:
            with explain_disk_errors(self.ticket):
                self.ticket.parent.mkdir(parents=True, exist_ok=True)
                self.ticket.touch()
        if status == _REFUSED:
            raise UserError(f"{self.folder.name}: was refused (see above); mend the study, what is measured is kept")
        return status

    def failed(self) -> list[Row]:
        """Give the row of a run that did not succeed."""
        return [Row(*self.cell.axes, self.repeat, "measured", "failed", folder=self.folder.name)]


@dataclass(frozen=True)
class _Prediction:
    """What the simulator, which `launch` runs but never imports, says of cells that differ in their ranks alone.

    Those that are measured as well are among them: what the simulator errs by is seen where both are known.
    """

    cells: tuple[ScalingCell, ...]
    recipe: Recipe
    cluster: Cluster
    folder: Path

    def rows(self) -> list[Row]:
        """Give what was predicted; none: nothing yet.

        Raises:
            UserError: The folder holds another study's.
        """
        done = _is_same(self.folder, self.recipe, self.cluster) and (self.folder / PREDICTION_FILE).is_file()
        return predicted(self.cells, self.folder, self.recipe.data.train_samples) if done else []

    def start(self) -> int | None:
        """Ask the simulator; its answer counts once it is whole."""
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

    def failed(self) -> list[Row]:
        """Leave out what nobody could predict."""
        return []


_Task = _Measurement | _Prediction


def run_scaling(study: ScalingStudy, runs: Path, output: Path, *, dry: bool, run: Runner) -> int:
    """Run a study, or show what of it is done; its table is up to date after each cell.

    Args:
        study: The grid.
        runs: Folder of the runs' folders.
        output: Folder of the table and the page.
        dry: Only list the cells.
        run: What runs a cell.

    Returns:
        0, 1 when a cell failed (the others are run all the same), 128 + n when a signal stopped it. A cell that a
        scheduler has is looked for at the next call; removing its ``.submitted`` hands it over again.

    Raises:
        UserError: A folder holds another run, or a cell was refused.
    """
    if not dry:
        _prepare(study)
    tasks: list[_Task] = [*_predictions(study, runs), *_measurements(study, runs, run)]
    known = [task.rows() for task in tasks]  # before the first run, so that a folder of another study is seen now
    rows = _skipped(study)
    failed = False
    for number, (task, before) in enumerate(zip(tasks, known, strict=True), start=1):
        found = before
        sys.stdout.write(f"{number:4}/{len(tasks)}  {task.folder.name:48}  {_known(task, found)}\n")
        sys.stdout.flush()
        if not found and not dry:
            status = task.start()
            if status is None:
                continue
            if status > _SIGNALLED:
                return status
            found = task.rows()
            failed |= not found
        rows += found or ([] if dry else task.failed())
        if not dry:
            write_scaling(study, rows, output)
    if not dry:
        write_scaling_page(study, rows, runs, output)
        for each in study.expects:
            sys.stdout.write(f"{verdict(compare(each, rows))}: {each.words}\n")
        sys.stdout.write(f"{output / study.name}.html\n")
    return int(failed)


def _skipped(study: ScalingStudy) -> list[Row]:
    """Give the rows of the cells that this machine has the cores for, but not the link."""
    place = study.place()
    shaped = [cell for cell in study.cells() if _has_cores(cluster := study.load(cell)[1], place) and _shapes(cluster)]
    if not shaped or can_shape():
        return []
    return [Row(*cell.axes, 0, "measured", "skipped", note=NO_LINK) for cell in shaped]


def _prepare(study: ScalingStudy) -> None:
    """Pack the study's own data sets, those that are not there yet.

    Raises:
        UserError: One cannot be packed.
    """
    for name, (source, *others) in study.prepare.items():
        destination = resolve_path(study.place().paths.data) / name
        if not (destination / "manifest.json").is_file():
            pack([str(source), str(destination), *map(str, others)])


def _known(task: _Task, rows: list[Row]) -> str:
    if isinstance(task, _Prediction):
        return f"{'predicted' if rows else 'to predict'} for {', '.join(str(cell.ranks) for cell in task.cells)} ranks"
    if not rows:
        if not task.ticket.exists():
            return "to run"
        is_over = (task.folder / SUMMARY_FILE).is_file()
        return f"failed; remove {task.ticket.name} to try again" if is_over else "waits in the scheduler's queue"
    return f"{rows[0].images_per_s:,.1f} images/s"


def _is_same(folder: Path, recipe: Recipe, cluster: Cluster) -> bool:
    """Tell whether ``folder`` holds, or held, a run of these.

    Raises:
        UserError: It holds another.
    """
    config = folder / CONFIG_FILE
    if not config.is_file():
        return False
    ran, place = load_run(config)
    # A job's folders are absolute ones.
    if (ran, with_resolved_paths(place)) != (recipe, with_resolved_paths(cluster)):
        raise UserError(f"{folder}: ran with other settings than the study has now; remove it, or give other --runs")
    return True


def _predictions(study: ScalingStudy, runs: Path) -> Iterator[_Prediction]:
    """Ask for each line of the grid along the ranks that has a point beyond the machine."""
    place = study.place()
    lines: dict[str, list[ScalingCell]] = {}
    for cell in study.cells():
        lines.setdefault(replace(cell, ranks=0).name, []).append(cell)
    for cells in lines.values():
        largest = max(cells, key=lambda cell: cell.ranks)
        recipe, cluster = study.load(largest)
        # The simulator times steps that wait for each other.
        if not _fits(cluster, place) and cluster.communication.kind != "parameter_server_async":
            yield _Prediction(tuple(cells), recipe, cluster, runs / f"{largest.name}-predicted")


def _measurements(study: ScalingStudy, runs: Path, run: Runner) -> Iterator[_Measurement]:
    """Every cell once, then every cell again: what drifts on a machine meets them all alike."""
    place = study.place()
    fitting = [cell for cell in study.cells() if _fits(study.load(cell)[1], place)]
    for repeat in range(study.repeats):
        for cell in fitting:
            folder = runs / f"{cell.name}-{repeat + 1}"
            yield _Measurement(cell, repeat, *study.load(cell, repeat), folder, study.warmup_steps, run)


def _fits(cluster: Cluster, place: Cluster) -> bool:
    """Tell whether the machines that there are can run a cell."""
    return _has_cores(cluster, place) and (not _shapes(cluster) or can_shape())


def _shapes(cluster: Cluster) -> bool:
    return cluster.communication.link_bytes_per_s is not None


def _has_cores(cluster: Cluster, place: Cluster) -> bool:
    """Tell whether there is a core for each thread, or a GPU a rank."""
    if place.device == "cpu" and place.launcher == "local":
        return cluster.world_size * cluster.engine.threads <= len(os.sched_getaffinity(0))
    is_ours = cluster.launcher == "local" and cluster.scheduler.kind == "none"
    is_startable = is_ours or cluster.communication.kind in ("horovod", "none")
    return is_startable and cluster.world_size <= place.world_size
