"""A parallel map for packing and verifying. It keeps the order, limits the memory, and leaves no process behind."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from tqdm import tqdm

from configs.errors import UserError
from configs.interrupts import ending_signals

Task = TypeVar("Task")
Result = TypeVar("Result")

_IMAGES_PER_TASK = 16

_work: Callable[[Any], Any] | None = None
"""The function of this worker process. A fork inherits it without pickling, so that it may refer to a whole source."""


def chunked(items: Iterable[Task], size: int) -> Iterator[Sequence[Task]]:
    """Yield the items in lists of ``size``; the last list may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def in_order(
    function: Callable[[Task], Result], items: Iterable[Task], *, workers: int, title: str, total: int
) -> Iterator[Result]:
    """Yield ``function(image)`` for each of many images, see `ordered_map`, and show the progress on a terminal.

    Args:
        function: Any callable.
        items: What stands for each image; small picklable values.
        workers: Number of processes, of which no more are started than there is work for.
        title: Words before the progress.
        total: Number of images.
    """

    def work(chunk: Sequence[Task]) -> list[Result]:
        return [function(item) for item in chunk]

    workers = max(1, min(workers, math.ceil(total / _IMAGES_PER_TASK)))
    with (
        tqdm(total=total, desc=title, unit=" images", disable=None) as progress,
        contextlib.closing(ordered_map(work, chunked(items, _IMAGES_PER_TASK), workers=workers)) as done,
    ):
        for results in done:
            yield from results
            progress.update(len(results))


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[Result, None, None]:
    """Yield ``function(task)`` for each task in order, computed by forked processes.

    At most about 2 tasks a worker are unfinished, or have a result that the caller has not taken. So a slow
    caller (a full write queue) slows the workers down; the pools of the standard library would pile up results in
    memory instead. To stop the workers early, close the generator (see `contextlib.closing`).

    Args:
        function: Any callable; the forks inherit it.
        tasks: Small picklable values, taken from the iterable as they are needed.
        workers: Number of processes, 1 or more; with 1, the tasks run in this process.

    Raises:
        UserError: A worker process was killed. An exception of ``function`` is raised unchanged.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start, (function,))
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            # In the hooks of a fork, Python would print a traceback of Ctrl-C and forget it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pending.append(pool.submit(_call, task))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError("a worker process was killed, perhaps because memory ran out; set fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(function: Callable[[Any], Any]) -> None:
    """Prepare a forked worker: it ignores Ctrl-C, which the parent handles, and ends when the parent ends."""
    global _work  # noqa: PLW0603 (set once in each process)
    _work = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for ending in ending_signals():
        signal.signal(ending, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the parent has ended: after kill -9 of the parent it would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(task: Any) -> Any:
    assert _work is not None
    return _work(task)
