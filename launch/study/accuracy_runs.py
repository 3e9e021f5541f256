"""The runs of an accuracy study: the grids at the first seed, then the other seeds at the best value of each point."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from configs.registry import require_engine
from configs.study import Cell, Study
from launch.study.cell_run import CellRun, RunStarter
from launch.study.runner import run_study
from logs.folder import Summary
from logs.study.accuracy import accuracy_text, best_cells, write_study

DIVERGED = "loss not finite"
"""Words in the failure of a run that diverged, which is a result too: the learning rate is too high."""


@dataclass(frozen=True)
class _AccuracyTask:
    """One run of the study."""

    cell: Cell
    run: CellRun

    @property
    def folder(self) -> Path:
        return self.run.folder

    def read(self) -> tuple[Cell, Summary] | None:
        """Return the summary of a run that succeeded or diverged."""
        summary = self.run.summary()
        has_result = summary is not None and (summary.status == "success" or DIVERGED in (summary.failure or ""))
        return (self.cell, summary) if summary is not None and has_result else None

    def start(self) -> int | None:
        return self.run.start()

    def describe(self, result: tuple[Cell, Summary] | None) -> str:
        return self.run.state() if result is None else accuracy_text(result[1])

    def failure(self) -> None:
        """Return None: without a result of every grid value, no best value can be chosen."""


@dataclass
class _AccuracyProgress:
    """The runs of an accuracy study, and the results so far."""

    study: Study
    runs: Path
    output: Path
    starter: RunStarter
    results: dict[Cell, Summary] = field(default_factory=dict)

    def stages(self) -> Iterator[Sequence[_AccuracyTask]]:
        study, grid = self.study, list(self.study.grid_cells())
        yield self._tasks(grid)
        if len(self.results) < len(grid):  # Only a dry run gets here without all results.
            sys.stdout.write(f"then {len(study.seeds) - 1} more seeds at the best of each point\n")
            return
        best = best_cells(study, self.results).values()
        yield self._tasks(replace(cell, seed=seed) for cell in best for seed in study.seeds[1:])

    def record(self, result: tuple[Cell, Summary]) -> None:
        cell, summary = result
        self.results[cell] = summary

    def save(self) -> None:
        """Write nothing: the table marks the best value of each point, which is known only at the end."""

    def finish(self) -> None:
        write_study(self.study, self.results, self.output)

    def _tasks(self, cells: Iterable[Cell]) -> list[_AccuracyTask]:
        return [
            _AccuracyTask(cell, CellRun(*self.study.load(cell), self.runs / cell.folder, self.starter))
            for cell in cells
        ]


def run_accuracy(study: Study, runs: Path, output: Path, *, is_dry_run: bool, starter: RunStarter) -> int:
    """Run an accuracy study, or list its runs.

    Args:
        study: The curves with their grids.
        runs: Folder of the runs' folders.
        output: Folder of the table, the page and the plot.
        is_dry_run: Whether to list the runs only.
        starter: What runs a cell.

    Returns:
        The exit status; a run that fails without diverging ends the study with the status of the run.

    Raises:
        ConfigError: A run needs a framework that this environment lacks.
        UserError: A folder holds a run with other settings, or a run was refused.
    """
    if not is_dry_run:
        for name in {study.load(cell)[1].engine.name for cell in study.grid_cells()}:
            require_engine(name)
    return run_study(_AccuracyProgress(study, runs, output, starter), is_dry_run=is_dry_run)
