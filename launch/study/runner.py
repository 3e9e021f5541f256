"""The runner of both kinds of study: finished tasks are kept, missing ones are run, the table and the page follow.

Each task has a folder of its own. A task whose folder holds a result never runs again, so a study that was stopped
continues with the first task without a result.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from configs.errors import STOPPED_STATUS

Result = TypeVar("Result")

_SIGNALLED = 128
"""A status above this is 128 plus the number of the signal that stopped the task."""


class StudyTask(Protocol[Result]):
    """A run or a prediction that a study consists of."""

    @property
    def folder(self) -> Path:
        """The folder of the task."""
        ...

    def read(self) -> Result | None:
        """Return the result in the folder, or None if the task has not come to its end.

        Raises:
            UserError: The folder belongs to a task with other settings.
        """
        ...

    def start(self) -> int | None:
        """Run the task to its end.

        Returns:
            The exit status, `STOPPED_STATUS` if a signal stopped the task and its state is kept, 128 + n if signal n
            ended it, or None if the task waits in a scheduler's queue.

        Raises:
            UserError: The task was refused before it began.
        """
        ...

    def describe(self, result: Result | None) -> str:
        """Return the result in a few words, or without a result what is still to be done."""
        ...

    def failure(self) -> Result | None:
        """Return the result of a task that failed, or None if the study cannot continue after a failure."""
        ...


class StudyProgress(Protocol[Result]):
    """What differs between kinds of study: the tasks, and what becomes of their results."""

    def stages(self) -> Iterator[Sequence[StudyTask[Result]]]:
        """Return lists of tasks; a list may depend on the results of the lists before it."""
        ...

    def record(self, result: Result) -> None:
        """Add the result of a task."""
        ...

    def save(self) -> None:
        """Write what can be written before all results are there."""
        ...

    def finish(self) -> None:
        """Write everything, once all results are there."""
        ...


class _Stopped(Exception):
    """The study cannot continue; the argument is the exit status."""


def run_study(study: StudyProgress[Result], *, is_dry_run: bool) -> int:
    """Run the tasks of a study that have no result yet, and write the study's table and page.

    Args:
        study: The tasks, and where their results go.
        is_dry_run: Whether to list the tasks only. Nothing is run or written then.

    Returns:
        0; 1 if a task failed; `STOPPED_STATUS` or 128 + n if a signal stopped a task.

    Raises:
        UserError: A folder belongs to a task with other settings, or a task was refused.
    """
    has_failed = False
    for tasks in study.stages():
        # All folders are read before the first run, so that a folder of another study is refused now, not hours later.
        known = [task.read() for task in tasks]
        for number, (task, found) in enumerate(zip(tasks, known, strict=True), start=1):
            sys.stdout.write(f"{number:4}/{len(tasks)}  {task.folder.name:48}  {task.describe(found)}\n")
            sys.stdout.flush()
            result = found
            if found is None and not is_dry_run:
                try:
                    outcome = _run(task)
                except _Stopped as stopped:
                    return int(stopped.args[0])
                result = outcome[0]
                has_failed |= outcome[1]
            if result is not None:
                study.record(result)
                if not is_dry_run:
                    study.save()
    if not is_dry_run:
        study.finish()
    return int(has_failed)


def _run(task: StudyTask[Result]) -> tuple[Result | None, bool]:
    """Run a task; return the result, or None if the task waits in a queue, and whether the task failed.

    Raises:
        _Stopped: A signal stopped the task, or the study cannot continue after the failure of the task.
    """
    status = task.start()
    if status is None:
        return None, False
    if status == STOPPED_STATUS or status > _SIGNALLED:
        raise _Stopped(status)
    result = task.read()
    if result is not None:
        return result, False
    failure = task.failure()
    if failure is None:
        raise _Stopped(status or 1)
    return failure, True
