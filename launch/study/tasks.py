"""The tasks of both kinds of study: finished ones are kept, missing ones are run, the table and the page follow.

Each task has a folder of its own. A task whose folder holds a result never runs again, so a study that was stopped
continues with the first task without a result.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from configs.errors import REFUSED_STATUS, STOPPED_STATUS, UserError
from configs.load import with_resolved_paths
from configs.schema import Cluster, Recipe
from launch.submit.submission import JOB_FILE
from logs.folder import RunFolder, Summary

Result = TypeVar("Result")

RunStarter = Callable[[Recipe, Cluster, Path], int | None]
"""Runs a recipe on a cluster in a folder. Returns the exit status, 128 + n if signal n stopped the run, or None if the
run waits in a scheduler's queue."""

_SIGNALLED = 128
"""A status above this is 128 plus the number of the signal that stopped the task."""


@dataclass(frozen=True)
class Task(Generic[Result]):
    """A run that a study consists of, in a folder of its own.

    Attributes:
        recipe: What the task trains.
        cluster: Where it runs.
        folder: The folder of the task.
        starter: What runs it.
        find: Returns the result of a run by its summary, or None if the run has to be made again.
        words: Returns a result in a few words.
        failure: The result of a task that failed; None if the study cannot continue after a failure.
        resumes: Whether a run that was stopped goes on from its checkpoint. A time is measured without a break.
    """

    recipe: Recipe
    cluster: Cluster
    folder: Path
    starter: RunStarter
    find: Callable[[Summary], Result | None]
    words: Callable[[Result], str]
    failure: Result | None = None
    resumes: bool = False

    @property
    def _is_submitted(self) -> bool:
        """Whether the run was handed to a scheduler."""
        return (self.folder / JOB_FILE).is_file()

    def read(self) -> Result | None:
        """Return the result in the folder, or None if there is none yet.

        Raises:
            UserError: The folder holds a run of another recipe, or on another cluster.
        """
        run = RunFolder(self.folder)
        if not run.is_begun:
            return None
        ran, place = run.settings
        # A job's config has absolute paths where the study has relative ones.
        if (ran, with_resolved_paths(place)) != (self.recipe, with_resolved_paths(self.cluster)):
            raise UserError(
                f"{self.folder}: holds a run whose settings differ from the study's; remove the folder, or give "
                "another --runs"
            )
        return self.find(run.summary()) if run.has_summary else None

    def start(self) -> int | None:
        """Run the task to its end.

        Returns:
            The exit status, `STOPPED_STATUS` if a signal stopped the task and its state is kept, 128 + n if signal n
            ended the task, or None if the task waits in a scheduler's queue.

        Raises:
            UserError: The run was refused before it began.
        """
        run = RunFolder(self.folder)
        if self._is_submitted:
            # A job that ended without success is submitted again only on request: after its folder was removed.
            return 1 if run.has_summary else None
        if owner := run.claims.holder():
            raise UserError(f"{self.folder}: a run is active in it: {owner}; wait for its end")
        if run.is_begun and not self._can_resume(run):
            shutil.rmtree(self.folder)  # The rest of an earlier attempt at the same run, which did not come to its end.
        status = self.starter(self.recipe, self.cluster, self.folder)
        if status == REFUSED_STATUS:
            raise UserError(
                f"{self.folder.name}: the run was refused (see above); correct the study, finished runs are kept"
            )
        return status

    def _can_resume(self, run: RunFolder) -> bool:
        """Return whether the run in the folder was stopped, and left a checkpoint."""
        is_over = run.has_summary and run.summary().steps is not None
        return self.resumes and not is_over and run.checkpoints.newest_valid()[0] is not None

    def describe(self, result: Result | None) -> str:
        """Return the result in a few words, or without one what is to be done."""
        if result is not None:
            return self.words(result)
        if not self._is_submitted:
            return "to run"
        failed = f"failed; remove {self.folder} to try again"
        return failed if RunFolder(self.folder).has_summary else "waits in the scheduler's queue"


def run_study(
    stages: Iterable[Sequence[Task[Result]]],
    record: Callable[[Result], None],
    finish: Callable[[], None],
    *,
    is_dry_run: bool,
) -> int:
    """Run the tasks of a study that have no result yet, and write the study's table and page.

    Args:
        stages: Lists of tasks; a list may depend on the results of the lists before it.
        record: Takes the result of a task.
        finish: Writes the page, once all results are there.
        is_dry_run: Whether to list the tasks only. Nothing is run then, and ``finish`` is not called.

    Returns:
        0; 1 if a task failed; `STOPPED_STATUS` or 128 + n if a signal stopped a task.

    Raises:
        UserError: A folder belongs to a task with other settings, or a task was refused.
    """
    has_failed = False
    for tasks in stages:
        known = [task.read() for task in tasks]  # A folder of another study is refused now, not hours later.
        for number, (task, found) in enumerate(zip(tasks, known, strict=True), start=1):
            sys.stdout.write(f"{number:4}/{len(tasks)}  {task.folder.name:48}  {task.describe(found)}\n")
            sys.stdout.flush()
            result = found
            if found is None and not is_dry_run:
                status = task.start()
                if status is None:
                    continue
                if status == STOPPED_STATUS or status > _SIGNALLED:
                    return status
                result = task.read()
                if result is None:
                    if task.failure is None:
                        return status or 1
                    result, has_failed = task.failure, True
            if result is not None:
                record(result)
    if not is_dry_run:
        finish()
    return int(has_failed)
