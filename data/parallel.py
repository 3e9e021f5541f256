"""A map over processes for packing and verifying: ordered, bounded in memory, no orphans."""

from __future__ import annotations

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

from configs.errors import UserError

__all__ = ["chunked", "ordered_map"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_work: Callable[[Any], Any] | None = None
"""A worker's function: it travels by fork, not by pickle, so that it may hold a whole source."""


def chunked(items: Iterable[Task], size: int) -> Iterator[Sequence[Task]]:
    """Cut ``items`` into lists of ``size``; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def ordered_map(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[Result, None, None]:
    """Give ``function(task)`` for each task, in order, computed by forked processes.

    No more than a few tasks a worker are under way or waiting to be taken, so a slow taker (a full write queue) holds
    the workers back; the pools of the standard library would pile results up in memory. Close the generator (see
    `contextlib.closing`) to stop the workers early.

    Args:
        function: Any callable; it is inherited by fork.
        tasks: Small picklable values, drawn as they are needed.
        workers: Processes, 1 or more; 1 works in this process.

    Raises:
        UserError: A worker died. What ``function`` raises comes through as it is.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start, (function,))
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(_call, task))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError("a worker process was killed, perhaps for want of memory; try fewer with --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(function: Callable[[Any], Any]) -> None:
    """Make a fresh fork a worker: Ctrl-C is its parent's affair, and it ends when its parent does."""
    global _work  # noqa: PLW0603 (set once a process)
    _work = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """After kill -9 of the parent a worker would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(task: Any) -> Any:
    assert _work is not None
    return _work(task)
