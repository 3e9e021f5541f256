"""The runner of both kinds of study: finished tasks are kept, missing ones are run, the table and the page follow.

Each task has a folder of its own. A task whose folder holds a result never runs again, so a study that was stopped
continues with the first task without a result.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from configs.errors import STOPPED_STATUS

Result = TypeVar("Result")

_SIGNALLED = 128
"""A status above this is 128 plus the number of the signal that stopped the task."""


@dataclass(frozen=True)
class Task(Generic[Result]):
    """A run or a prediction that a study consists of.

    Attributes:
        folder: The folder of the task.
        read: Returns the result in the folder, or None if the task has not come to its end. Raises `UserError` if the
            folder belongs to a task with other settings.
        start: Runs the task to its end. Returns the exit status, `STOPPED_STATUS` if a signal stopped the task and its
            state is kept, 128 + n if signal n ended the task, or None if the task waits in a scheduler's queue. Raises
            `UserError` if the task was refused before it began.
        describe: Returns the result in a few words, or without a result what is still to be done.
        failure: The result of a task that failed; None if the study cannot continue after a failure.
    """

    folder: Path
    read: Callable[[], Result | None]
    start: Callable[[], int | None]
    describe: Callable[[Result | None], str]
    failure: Result | None = None


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
        # All folders are read before the first run, so that a folder of another study is refused now, not hours later.
        known = [task.read() for task in tasks]
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
