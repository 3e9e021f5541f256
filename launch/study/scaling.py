"""A scaling study: cells that fit this machine are measured, cells that do not fit are predicted by the simulator."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from configs.arguments import counted
from configs.errors import UserError
from configs.interrupts import run_child
from configs.load import ROOT, resolve_path
from configs.machine_limits import usable_cores
from configs.programs import Program, command_of
from configs.registry import COMMUNICATORS, ENGINES, has_engine
from configs.schema import Cluster
from configs.study import ScalingCell, ScalingStudy
from launch.run import pack_data_set
from launch.start.local import CANNOT_SHAPE, can_shape
from launch.study.page import write_page
from launch.study.rows import ScalingRow, measured, write_table
from launch.study.tasks import RunStarter, Task, run_study
from logs.folder import Summary
from train.sim.conditions import DESCRIPTION, conditions
from train.sim.forecast import forecast

_NOT_PREDICTED = "too large for this machine; the simulator has one rate for all frameworks"


def run_scaling(study: ScalingStudy, runs: Path, output: Path, *, is_dry_run: bool, starter: RunStarter) -> int:
    """Run a scaling study, or list its tasks; the table is up to date after each task.

    A task that waits in a scheduler's queue is looked at again by the next call. To submit the task again, remove its
    folder.

    Args:
        study: The grid.
        runs: Folder of the runs' folders.
        output: Folder of the table and the page.
        is_dry_run: Whether to list the tasks only.
        starter: What runs a cell.

    Returns:
        0; 1 if a task failed, which does not keep the others from running; 128 + n if signal n stopped a task.

    Raises:
        UserError: A folder holds a run with other settings, a run was refused, or a data set cannot be packed.
    """
    if not is_dry_run:
        _pack_missing_data(study)
    why_not = {cell: why or _why_not_run(cell, study.load(cell)[1], study.base_cluster) for cell, why in study.grid()}
    rows = [
        ScalingRow(**vars(cell), repeat=0, basis="measured", status="skipped", note=why)
        for cell, why in why_not.items()
        if why
    ]
    for note, count in Counter(row.note for row in rows).items():
        sys.stdout.write(f"not run: {counted(count, 'cell')}: {note}\n")

    def record(found: list[ScalingRow]) -> None:
        rows.extend(found)
        if not is_dry_run:
            write_table(rows, output / f"{study.name}.csv")

    def finish() -> None:
        write_table(rows, output / f"{study.name}.csv")  # also of a study in which every cell was skipped
        write_page(study, rows, runs, output)
        sys.stdout.write(f"{output / study.name}.html\n")

    fitting, has_failed = [cell for cell, why in why_not.items() if why is None], False
    beyond, done = _beyond(study, fitting), "to predict" if is_dry_run else "predicted"
    for number, cells in enumerate(beyond, start=1):
        ranks = ", ".join(str(cell.ranks) for cell in cells)
        sys.stdout.write(f"{number:4}/{len(beyond)}  {cells[-1].name + '-predicted':48}  {done} for {ranks} ranks\n")
        sys.stdout.flush()
        try:
            record([] if is_dry_run else _predict(study, cells))
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            has_failed = True
    status = run_study([_measurements(study, fitting, runs, starter)], record, finish, is_dry_run=is_dry_run)
    return status or int(has_failed)


def _pack_missing_data(study: ScalingStudy) -> None:
    """Pack those of the study's own data sets that are not there yet.

    Raises:
        UserError: A data set cannot be packed.
    """
    for name, (source, *others) in study.prepare.items():
        destination = resolve_path(study.base_cluster.paths.data) / name
        if not (destination / "manifest.json").is_file():
            pack_data_set([str(source), str(destination), *map(str, others)])


def _why_not_run(cell: ScalingCell, cluster: Cluster, place: Cluster) -> str | None:
    """Return why the machines of ``place`` do not run a cell on ``cluster``, or None if they do.

    The reason is empty for a cell that is too large for them, and is predicted instead.
    """
    if not has_engine(name := cluster.engine.name):
        return f"{ENGINES[name].title} is not in this environment: ./run.sh setup --engine {name} adds it"
    if not _has_cores(cluster, place):
        return _NOT_PREDICTED if cell.framework else ""
    is_shaped = cluster.communication.link_bytes_per_s is not None
    return CANNOT_SHAPE if is_shaped and not can_shape() else None


def _has_cores(cluster: Cluster, place: Cluster) -> bool:
    """Return whether ``place`` has a core for each thread, or a GPU for each rank."""
    if place.device == "cpu" and place.launcher == "local":
        return cluster.world_size * cluster.engine.threads <= usable_cores()
    is_ours = cluster.launcher == "local" and cluster.scheduler.kind == "none"
    is_startable = is_ours or COMMUNICATORS[cluster.communication.kind].launchers != ("local",)
    return is_startable and cluster.world_size <= place.world_size


def _measurements(
    study: ScalingStudy, fitting: Sequence[ScalingCell], runs: Path, starter: RunStarter
) -> list[Task[list[ScalingRow]]]:
    """Return every cell once, then every cell again, so that a drift of the machine affects all cells alike."""

    def task(cell: ScalingCell, repeat: int) -> Task[list[ScalingRow]]:
        folder = runs / f"{cell.name}-{repeat + 1}"

        def find(ended: Summary) -> list[ScalingRow] | None:
            return [measured(cell, repeat, folder, study.warmup_steps)] if ended.is_concluded else None

        failure = ScalingRow(**vars(cell), repeat=repeat, basis="measured", status="failed", folder=folder.name)
        words = "{0[0].images_per_s:,.1f} images/s".format
        return Task(*study.load(cell, repeat), folder, starter, find, words, failure=[failure])

    return [task(cell, repeat) for repeat in range(study.repeats) for cell in fitting]


def _beyond(study: ScalingStudy, fitting: Sequence[ScalingCell]) -> list[list[ScalingCell]]:
    """Return the lines of the grid along the ranks whose last cell, the largest, does not fit this machine.

    A line has its smaller cells as well, also those that are measured, so that the page can show the simulator's error.
    The simulator knows only steps in which all ranks wait for each other.
    """
    lines: dict[str, list[ScalingCell]] = {}
    for cell in sorted(study.cells(), key=lambda each: each.ranks):
        if not cell.framework:
            lines.setdefault(replace(cell, ranks=0).name, []).append(cell)
    beyond = (cells for cells in lines.values() if cells[-1] not in fitting)
    return [cells for cells in beyond if study.load(cells[-1])[1].communication.kind != "parameter_server_async"]


def _predict(study: ScalingStudy, cells: Sequence[ScalingCell]) -> list[ScalingRow]:
    """Return the predicted rows of a line; first measure this machine, if its CPU is meant and was never measured.

    Raises:
        UserError: The simulator does not know the machine, or this machine cannot be measured.
    """
    recipe, cluster = study.load(cells[-1])
    if cluster.device == "cpu" and not cluster.node.cpu and not DESCRIPTION.is_file():
        run_child(command_of(Program.SIMULATE_VERB, "--calibrate-here"), cwd=ROOT)
    scenario = conditions(recipe, cluster)
    scenarios = [scenario.with_machine(ranks=cell.ranks) for cell in cells]
    return [
        ScalingRow(
            **vars(cell),
            repeat=0,
            basis="predicted",
            images_per_s=one.images_per_s,
            efficiency=one.efficiency,
            later_epoch_s=recipe.data.train_samples / one.images_per_s,
        )
        for cell, one in zip(cells, map(forecast, scenarios), strict=True)
    ]
