"""The tasks of a scaling study: cells that fit this machine are measured, cells that do not fit are predicted."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from configs.errors import UserError
from configs.load import resolve_path
from configs.registry import ENGINES, has_engine
from configs.scaling_study import ScalingCell, ScalingStudy
from configs.schema import Cluster
from launch.run import pack
from launch.start.link import CANNOT_SHAPE, can_shape
from launch.study.cell_run import CellRun, RunStarter
from launch.study.prediction import Prediction
from launch.study.runner import StudyTask, run_study
from logs.study.cells import ScalingRow, measured
from logs.study.expectations import compare, verdict
from logs.study.scaling_page import write_scaling_page
from logs.study.scaling_table import write_scaling

_DEBIAN_DATASETS = Path("/usr/share/datasets")
"""Where Debian's packages dataset-NAME put their files."""

_NOT_PREDICTED = "too large for this machine; the simulator has one rate for all frameworks"


@dataclass(frozen=True)
class _Measurement:
    """One repeat of a cell."""

    cell: ScalingCell
    repeat: int
    run: CellRun
    warmup_steps: int

    @property
    def folder(self) -> Path:
        return self.run.folder

    def read(self) -> list[ScalingRow] | None:
        summary = self.run.summary()
        if summary is None or summary.status != "success":
            return None
        return [measured(self.cell, self.repeat, self.folder, self.warmup_steps)]

    def start(self) -> int | None:
        return self.run.start()

    def describe(self, result: list[ScalingRow] | None) -> str:
        return self.run.state() if result is None else f"{result[0].images_per_s:,.1f} images/s"

    def failure(self) -> list[ScalingRow]:
        return [ScalingRow(*self.cell.axes, self.repeat, "measured", "failed", folder=self.folder.name)]


@dataclass
class _ScalingProgress:
    """The tasks of a scaling study, and the rows so far."""

    study: ScalingStudy
    runs: Path
    output: Path
    starter: RunStarter
    rows: list[ScalingRow] = field(default_factory=list)

    def stages(self) -> Iterator[Sequence[StudyTask[list[ScalingRow]]]]:
        self.rows += _skipped(self.study)
        for note, count in Counter(row.note for row in self.rows).items():
            sys.stdout.write(f"not run: {count} cell{'s' if count > 1 else ''}: {note}\n")
        yield [*_predictions(self.study, self.runs), *_measurements(self.study, self.runs, self.starter)]

    def record(self, result: list[ScalingRow]) -> None:
        self.rows += result

    def save(self) -> None:
        write_scaling(self.study, self.rows, self.output)

    def finish(self) -> None:
        write_scaling_page(self.study, self.rows, self.runs, self.output)
        for each in self.study.expects:
            sys.stdout.write(f"{verdict(compare(each, self.rows))}: {each.sentence}\n")
        sys.stdout.write(f"{self.output / self.study.name}.html\n")


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
    return run_study(_ScalingProgress(study, runs, output, starter), is_dry_run=is_dry_run)


def _pack_missing_data(study: ScalingStudy) -> None:
    """Pack those of the study's own data sets that are not there yet.

    Raises:
        UserError: A data set cannot be packed.
    """
    for name, (source, *others) in study.prepare.items():
        destination = resolve_path(study.base_cluster().paths.data) / name
        if not (destination / "manifest.json").is_file():
            _require_source(Path(str(source)), name)
            pack([str(source), str(destination), *map(str, others)])


def _require_source(source: Path, name: str) -> None:
    """Raise `UserError` with the command that gets a data set, if its source is a package that is not installed."""
    if source.is_relative_to(_DEBIAN_DATASETS) and not source.exists():
        package = f"dataset-{source.relative_to(_DEBIAN_DATASETS).parts[0]}"
        raise UserError(
            f"study.prepare.{name}: {source} is missing; it comes with Debian's package {package}: "
            f"apt-get install {package}, or name another folder of IDX files in the study"
        )


def _skipped(study: ScalingStudy) -> Iterator[ScalingRow]:
    """Yield a row for each cell that cannot be run here, and that the simulator could not replace either."""
    place = study.base_cluster()
    for cell in study.cells():
        if why := _why_skipped(cell, study.load(cell)[1], place):
            yield ScalingRow(*cell.axes, 0, "measured", "skipped", note=why)


def _why_skipped(cell: ScalingCell, cluster: Cluster, place: Cluster) -> str:
    """Return why a cell is not run, or an empty text if it is run or predicted."""
    if not has_engine(name := cluster.engine.name):
        return f"{ENGINES[name].title} is not in this environment: ./run.sh setup --engine {name} adds it"
    if not _has_cores(cluster, place):
        return _NOT_PREDICTED if cell.framework else ""
    return CANNOT_SHAPE if _shapes(cluster) and not can_shape() else ""


def _predictions(study: ScalingStudy, runs: Path) -> Iterator[Prediction]:
    """Return a prediction for each line of the grid along the ranks that has a cell beyond this machine."""
    place = study.base_cluster()
    lines: dict[str, list[ScalingCell]] = {}
    for cell in study.cells():
        if not cell.framework:
            lines.setdefault(replace(cell, ranks=0).name, []).append(cell)
    for cells in lines.values():
        largest = max(cells, key=lambda cell: cell.ranks)
        recipe, cluster = study.load(largest)
        # The simulator knows only steps in which all ranks wait for each other.
        if not _fits(largest, cluster, place) and cluster.communication.kind != "parameter_server_async":
            yield Prediction(tuple(cells), recipe, cluster, runs / f"{largest.name}-predicted")


def _measurements(study: ScalingStudy, runs: Path, starter: RunStarter) -> Iterator[_Measurement]:
    """Return every cell once, then every cell again, so that a drift of the machine affects all cells alike."""
    place = study.base_cluster()
    fitting = [cell for cell in study.cells() if _fits(cell, study.load(cell)[1], place)]
    for repeat in range(study.repeats):
        for cell in fitting:
            folder = runs / f"{cell.name}-{repeat + 1}"
            run = CellRun(*study.load(cell, repeat), folder, starter)
            yield _Measurement(cell, repeat, run, study.warmup_steps)


def _fits(cell: ScalingCell, cluster: Cluster, place: Cluster) -> bool:
    """Return whether the machines of ``place`` can run a cell on ``cluster``."""
    return _has_cores(cluster, place) and not _why_skipped(cell, cluster, place)


def _shapes(cluster: Cluster) -> bool:
    """Return whether a run limits the speed of the loopback link."""
    return cluster.communication.link_bytes_per_s is not None


def _has_cores(cluster: Cluster, place: Cluster) -> bool:
    """Return whether ``place`` has a core for each thread, or a GPU for each rank."""
    if place.device == "cpu" and place.launcher == "local":
        return cluster.world_size * cluster.engine.threads <= len(os.sched_getaffinity(0))
    is_ours = cluster.launcher == "local" and cluster.scheduler.kind == "none"
    is_startable = is_ours or not cluster.communication.needs_local_launcher
    return is_startable and cluster.world_size <= place.world_size
