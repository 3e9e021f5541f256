"""A scaling study: cells that fit this machine are measured, cells that do not fit are predicted by the simulator."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT, dump, resolve_path
from configs.machine_limits import usable_cores
from configs.programs import Program, command_of
from configs.registry import COMMUNICATORS, ENGINES, has_engine
from configs.schema import Cluster, Recipe
from configs.study import ScalingCell, ScalingStudy
from launch.run import pack_data_set
from launch.start.local import CANNOT_SHAPE, can_shape
from launch.study.comparisons import compare, verdict
from launch.study.page import write_page
from launch.study.rows import PREDICTION_FILE, ScalingRow, measured, predicted, write_table
from launch.study.tasks import RunStarter, Task, run_study, summary_in
from logs.disk import explain_disk_errors, write_json, write_text
from logs.folder import CONFIG_FILE
from train.sim.conditions import DESCRIPTION, conditions
from train.sim.forecast import forecast_row
from train.sim.grid import sweep

_DEBIAN_DATASETS = Path("/usr/share/datasets")
"""Where Debian's packages dataset-NAME put their files."""

_NOT_PREDICTED = "too large for this machine; the simulator has one rate for all frameworks"

_Task = Task[list[ScalingRow]]


def run_scaling(study: ScalingStudy, runs: Path, output: Path, *, is_dry_run: bool, starter: RunStarter) -> int:
    """Run a scaling study, or list its tasks; the table is up to date after each task.

    A task that waits in a scheduler's queue is looked at again by the next call. To submit the task again, remove its
    ``.submitted`` file.

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
    why_not = {cell: _why_not_run(cell, study.load(cell)[1], study.base_cluster) for cell in study.cells()}
    impossible = {cell: _why_impossible(engine, kind) for cell, engine, kind in study.cells_of_other_engines()}
    rows = [
        ScalingRow(**vars(cell), repeat=0, basis="measured", status="skipped", note=why)
        for cell, why in (impossible | why_not).items()
        if why
    ]
    for note, count in Counter(row.note for row in rows).items():
        sys.stdout.write(f"not run: {count} cell{'s' if count > 1 else ''}: {note}\n")

    def record(found: list[ScalingRow]) -> None:
        rows.extend(found)
        if not is_dry_run:
            write_table(rows, output / f"{study.name}.csv")

    def finish() -> None:
        write_table(rows, output / f"{study.name}.csv")  # also of a study in which every cell was skipped
        write_page(study, rows, runs, output)
        for each in study.expects:
            sys.stdout.write(f"{verdict(compare(each, rows))}: {each.sentence}\n")
        sys.stdout.write(f"{output / study.name}.html\n")

    fitting = [cell for cell, why in why_not.items() if why is None]
    tasks = [*_predictions(study, fitting, runs), *_measurements(study, fitting, runs, starter)]
    return run_study([tasks], record, finish, is_dry_run=is_dry_run)


def _pack_missing_data(study: ScalingStudy) -> None:
    """Pack those of the study's own data sets that are not there yet.

    Raises:
        UserError: A data set cannot be packed; the message has the command that gets one of a missing Debian package.
    """
    for name, (first, *others) in study.prepare.items():
        source, destination = Path(str(first)), resolve_path(study.base_cluster.paths.data) / name
        if (destination / "manifest.json").is_file():
            continue
        if source.is_relative_to(_DEBIAN_DATASETS) and not source.exists():
            package = f"dataset-{source.relative_to(_DEBIAN_DATASETS).parts[0]}"
            raise UserError(
                f"study.prepare.{name}: {source} is missing; on Debian and Ubuntu apt-get install {package} brings it, "
                "elsewhere name another folder of IDX files in the study"
            )
        pack_data_set([str(first), str(destination), *map(str, others)])


def _why_impossible(engine: str, kind: str) -> str:
    able = next(name for name in COMMUNICATORS[kind].engines if ENGINES[name].computes)
    how = f"set cluster.engine.name: {able}" if has_engine(able) else f"./run.sh setup --engine {able} adds it"
    return f"{ENGINES[able].title} has communication.kind {kind}, {ENGINES[engine].title} does not: {how}"


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
    is_startable = is_ours or not cluster.communication.needs_local_launcher
    return is_startable and cluster.world_size <= place.world_size


def _measurements(
    study: ScalingStudy, fitting: Sequence[ScalingCell], runs: Path, starter: RunStarter
) -> Iterator[_Task]:
    """Yield every cell once, then every cell again, so that a drift of the machine affects all cells alike."""
    for repeat in range(study.repeats):
        for cell in fitting:
            yield _measurement(study, cell, repeat, runs / f"{cell.name}-{repeat + 1}", starter)


def _measurement(study: ScalingStudy, cell: ScalingCell, repeat: int, folder: Path, starter: RunStarter) -> _Task:
    """Return the task of one repeat of a cell."""

    def find() -> list[ScalingRow] | None:
        summary = summary_in(folder)
        is_result = summary is not None and summary.status == "success"
        return [measured(cell, repeat, folder, study.warmup_steps)] if is_result else None

    failure = ScalingRow(**vars(cell), repeat=repeat, basis="measured", status="failed", folder=folder.name)
    words = "{0[0].images_per_s:,.1f} images/s".format
    return Task(*study.load(cell, repeat), folder, starter, find, words, failure=[failure])


def _predictions(study: ScalingStudy, fitting: Sequence[ScalingCell], runs: Path) -> Iterator[_Task]:
    """Yield a prediction for each line of the grid along the ranks whose largest cell does not fit this machine."""
    lines: dict[str, list[ScalingCell]] = {}
    for cell in study.cells():
        if not cell.framework:
            lines.setdefault(replace(cell, ranks=0).name, []).append(cell)
    for cells in lines.values():
        largest = max(cells, key=lambda cell: cell.ranks)
        recipe, cluster = study.load(largest)
        # The simulator knows only steps in which all ranks wait for each other.
        if largest not in fitting and cluster.communication.kind != "parameter_server_async":
            yield _prediction(cells, recipe, cluster, runs / f"{largest.name}-predicted")


def _prediction(cells: Sequence[ScalingCell], recipe: Recipe, cluster: Cluster, folder: Path) -> _Task:
    """Return the task that predicts cells which differ only in their number of ranks.

    The cells include those that are measured as well, so that the page can show the simulator's error. A prediction
    that failed leaves no trace in the table.

    Args:
        cells: The cells.
        recipe: The recipe of the cell with the most ranks.
        cluster: The cluster of that cell.
        folder: Where the prediction is kept.
    """

    def find() -> list[ScalingRow] | None:
        is_known = (folder / PREDICTION_FILE).is_file()
        return predicted(cells, folder, recipe.data.train_samples) if is_known else None

    def start(recipe: Recipe, cluster: Cluster, folder: Path) -> int:
        with explain_disk_errors(folder):
            folder.mkdir(parents=True)
        write_text(folder / CONFIG_FILE, dump(recipe, cluster))
        try:
            write_json(folder / PREDICTION_FILE, _predict(cells, recipe, cluster))
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        return 0

    ranks = f"for {', '.join(str(cell.ranks) for cell in cells)} ranks"
    return Task(recipe, cluster, folder, start, find, lambda _: f"predicted {ranks}", f"to predict {ranks}", [])


def _predict(cells: Sequence[ScalingCell], recipe: Recipe, cluster: Cluster) -> list[dict[str, object]]:
    """Return a forecast for each cell; first measure this machine, if its CPU is meant and was never measured.

    Raises:
        UserError: The simulator does not know the machine, or this machine cannot be measured.
    """
    if cluster.device == "cpu" and not cluster.node.cpu and not DESCRIPTION.is_file():
        subprocess.run(command_of(Program.SIMULATE_VERB, "--calibrate-here"), cwd=ROOT, check=False)
    scenario, calibration = conditions(recipe, cluster)
    if cluster.communication.kind == "parameter_server":
        algorithm = f"ps:{cluster.communication.servers}"
        scenario = replace(scenario, software=replace(scenario.software, algorithm=algorithm))
    changes = [("ranks", tuple(str(cell.ranks) for cell in cells))]
    return [values | forecast_row(one) for values, one in sweep(scenario, calibration, changes)]
