"""The parallel map: chunks without loss, errors as they were raised, and no process that outlives the map."""

import contextlib
import errno
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.reading import Unreadable
from data.parallel import in_order, ordered_map
from tests.programs import python


def test_results_keep_the_order_of_their_tasks_which_are_taken_as_they_are_needed() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(30):
            taken.append(number)
            yield number

    results = ordered_map(lambda number: (number**2, os.getpid()), tasks(), workers=2)
    first, worker = next(results)
    assert first == 0
    assert worker != os.getpid()
    assert len(taken) == 2 * 2 + 1
    rest = list(results)
    assert [square for square, _ in rest] == [number**2 for number in range(1, 30)]
    assert len({worker, *(process for _, process in rest)}) <= 2


def test_images_that_one_process_has_at_once_start_no_other() -> None:
    for total, is_here in ((16, True), (17, False)):
        found = [*in_order(lambda _: os.getpid(), range(total), workers=3, title="", total=total)]
        assert (len(found), set(found) == {os.getpid()}, len({*found}) <= 2) == (total, is_here, True)


def test_a_worker_that_is_killed_is_a_clear_error() -> None:
    def die(_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"a worker process was killed.*fewer --workers"):
        list(ordered_map(die, range(3), workers=2))


def test_what_a_worker_refuses_is_refused_in_its_words() -> None:
    def refuse(_: int) -> None:
        raise Unreadable("a.jpg", OSError(errno.EIO, "Input/output error"))

    with pytest.raises(Unreadable, match=r"^a\.jpg: cannot be read: Input/output error; check") as caught:
        list(ordered_map(refuse, range(3), workers=2))
    assert caught.value.reason.startswith("cannot be read: ")


def test_workers_that_a_limit_keeps_from_starting_are_a_clear_error_and_those_before_are_gone() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 6, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot be started: Too many open files; set fewer --workers, or raise"):
            list(ordered_map(abs, range(99), workers=9))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert multiprocessing.active_children() == []


@pytest.mark.medium
def test_ctrl_c_while_workers_are_forked_is_heeded_and_is_no_traceback() -> None:
    program = (
        "import os, signal; from configs.arguments import exit_status; from data.parallel import ordered_map\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "raise SystemExit(exit_status(lambda: len([*ordered_map(abs, range(9), workers=2)])))"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C\n")


@pytest.mark.medium
def test_workers_leave_ctrl_c_to_the_parent_and_none_is_left_after_an_error_or_an_early_end() -> None:
    def fail_late(number: int) -> object:
        if number == 3:
            raise KeyError(number)
        return signal.getsignal(signal.SIGINT)

    before = set(multiprocessing.active_children())
    results = ordered_map(fail_late, range(9), workers=2)
    assert next(results) is signal.SIG_IGN
    with pytest.raises(KeyError, match="3"):
        list(results)
    with contextlib.closing(ordered_map(fail_late, range(3), workers=2)) as early:
        next(early)
    assert set(multiprocessing.active_children()) == before
