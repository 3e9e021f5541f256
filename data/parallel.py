"""A parallel map for packing and verifying. It keeps the order, limits the memory, and leaves no process behind."""

import contextlib
import math
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tqdm import tqdm

from configs.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_IMAGES_PER_TASK = 16


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
        UserError: A worker process was killed, or cannot be started. An exception of ``function`` is raised unchanged.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    staff: list[tuple[BaseProcess, Connection]] = []
    pending: deque[Connection] = deque()
    try:
        for number, task in enumerate(tasks):
            if number < workers:
                staff.append(_fork(function))
            _, pipe = staff[number % workers]
            with contextlib.suppress(OSError):  # of a worker that was killed, whose result will be missing
                pipe.send(task)
            pending.append(pipe)
            if len(pending) > 2 * workers:
                yield _result(pending.popleft())
        while pending:
            yield _result(pending.popleft())
    finally:
        for process, pipe in staff:
            process.kill()
            process.join()
            pipe.close()


def _fork(function: Callable[[Any], Any]) -> tuple[BaseProcess, Connection]:
    """Return a process that answers the tasks of a pipe one after another, and the pipe.

    No thread serves it here: where a limit lets only some of its processes and threads start, `ProcessPoolExecutor`
    waits for ever.
    """
    # In the hooks of a fork, Python would print a traceback of Ctrl-C and forget it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pipe, inner = multiprocessing.Pipe()
        # A fork inherits the function without pickling, so that it may refer to a whole source.
        process = multiprocessing.get_context("fork").Process(target=_work, args=(function, inner, pipe))
        process.start()
        inner.close()  # so that the pipe ends with the process
    except OSError as error:
        limits = "set fewer --workers, or raise the limit (ulimit -n, ulimit -u, or pids.max of the control group)"
        raise UserError(f"a worker process cannot be started: {error.strerror}; {limits}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, pipe


def _result(pipe: Connection) -> Any:
    try:
        result, error = pipe.recv()
    except (EOFError, OSError):
        raise UserError("a worker process was killed, perhaps because memory ran out; set fewer --workers") from None
    if error is not None:
        raise error
    return result


def _work(function: Callable[[Any], Any], pipe: Connection, outer: Connection) -> None:
    """Answer tasks until the parent ends, also by kill -9; Ctrl-C is the parent's to handle."""
    outer.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task, result, problem = pipe.recv(), None, None
            try:
                result = function(task)
            except Exception as error:  # noqa: BLE001 (raised by the parent)
                problem = error
            pipe.send((result, problem))
