"""A rank that stands still ends, and says truly where it stood and whether it waited for others.

The watchdog's own thread runs; the time that it reads passes only when a test says so.
"""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from configs.load import ROOT
from train.rank import watchdog
from train.rank.identity import Identity
from train.rank.peers import Peers
from train.rank.watchdog import StoodStill, Watchdog

TIMEOUT_S = 0.5
WAIT_S = 60


class _Time:
    """Stands for the module `time` and for the end of the process; remembers what it was told."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self.looked, self.ended = threading.Event(), threading.Event()
        self.statuses: list[int] = []
        self.rest: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        if threading.current_thread().name == "watchdog":
            self.looked.set()
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def end(self, status: int) -> None:
        """End the watchdog's thread without an error, which pytest would take for one of a later test."""
        self.statuses.append(status)
        self.rest()
        self.ended.set()

    def wait_for_a_look(self) -> None:
        """Wait until the watchdog has looked at the time, and once more, so that it has acted on what it saw."""
        for _ in range(2):
            self.looked.clear()
            assert self.looked.wait(WAIT_S)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Time]:
    made = _Time()
    monkeypatch.setattr(watchdog, "time", made)
    for name in ("faulthandler", "signal"):  # the kernel's timer, which would end the process of the tests
        monkeypatch.setattr(watchdog, name, Mock())
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=made.end, path=os.path, sep=os.sep))
    others = threading.enumerate()
    yield made
    # A watchdog that looked at the true time after the test would find it frozen, and end the process of the tests.
    made.rest()
    for thread in threading.enumerate():
        if thread.name == "watchdog" and thread not in others:
            thread.join(WAIT_S)


@pytest.fixture
def reports() -> list[StoodStill]:
    return []


@pytest.fixture
def dog(time: _Time, reports: list[StoodStill]) -> Iterator[Watchdog]:
    made = Watchdog(TIMEOUT_S, reports.append)
    time.rest = made.rest
    yield made
    made.rest()


def _stand_in(paths: Sequence[str], act: Callable[[], Any]) -> None:
    """Call a function from a stack of frames of the named files, the innermost last: a watchdog sees no more of it."""
    stand = act
    for path in reversed(paths):
        names: dict[str, Any] = {"call": stand}
        exec(compile("def stand(): call()", path, "exec"), names)
        stand = names["stand"]
    stand()


PLACES = {
    "loop": ([f"{ROOT}/train/loop.py"], "train/loop.py:1 (stand)", False),
    "our home of MXNet": ([f"{ROOT}/train/engine/mxnet/engine.py"], "train/engine/mxnet/engine.py:1 (stand)", False),
    "communicator": ([f"{ROOT}/train/comm/communicator.py"], "train/comm/communicator.py:1 (stand)", True),
    "start-up": ([f"{ROOT}/train/compose.py", "/x/concurrent/futures/_base.py"], "train/compose.py:1 (stand)", True),
    "PyTorch": ([f"{ROOT}/train/engine/torch/engine.py"], "train/engine/torch/engine.py:1 (stand)", True),
    "MXNet": ([f"{ROOT}/train/loop.py", "/x/site-packages/mxnet/nd.py"], "train/loop.py:1 (stand)", True),
    "Horovod": (
        [f"{ROOT}/train/loop.py", f"{ROOT}/.venv/lib/site-packages/horovod/mxnet/mpi_ops.py"],
        "train/loop.py:1 (stand)", True,
    ),
    "DALI": ([f"{ROOT}/data/input/stream.py", "/x/site-packages/nvidia/dali/pipeline.py"],
             "data/input/stream.py:1 (stand)", False),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "place", "waits"), PLACES.values(), ids=PLACES)
def test_a_rank_waits_for_others_only_in_a_library_call_or_where_ranks_meet(
    time: _Time, dog: Watchdog, reports: list[StoodStill], paths: list[str], place: str, waits: bool
) -> None:
    for step in range(3):
        dog(step)
    dog()

    def pass_time() -> None:
        for _ in range(3):  # In one go, the process would seem to have been frozen.
            time.wait_for_a_look()
            time.now += 0.4 * TIMEOUT_S

    threading.Thread(target=pass_time).start()
    _stand_in(paths, partial(time.ended.wait, WAIT_S))
    (report,) = reports
    assert (str(report), report.step, report.waits) == (f"no progress for 0.5 s, in {place}", 2, waits)
    # Launchers end all ranks when the first one ends: a rank that waits lets the others report first.
    assert (time.statuses, time.slept) == ([1], [2.0 if waits else 0])


def test_a_rank_that_makes_progress_is_left_alone_until_it_rests(
    time: _Time, dog: Watchdog, reports: list[StoodStill]
) -> None:
    for _ in range(10):
        time.now += 0.8 * TIMEOUT_S
        dog()
        time.wait_for_a_look()
    dog.rest()
    time.now += 100
    assert (reports, time.statuses) == ([], [])


def test_a_rank_that_was_frozen_says_for_how_long_and_ends_at_once(
    time: _Time, dog: Watchdog, reports: list[StoodStill]
) -> None:
    time.wait_for_a_look()
    time.now += 500
    dog()
    assert time.ended.wait(WAIT_S)
    (report,) = reports
    assert str(report).startswith("was frozen for 500 s, in ")
    assert not report.waits, "the others have given up waiting for it"
    assert time.slept == [0]


@pytest.mark.medium
@pytest.mark.parametrize(("jumps", "named"), [([0.9] * 4, ["rank 1 on b does not respond"]), ([30, 0, 0], [])])
def test_a_rank_that_waits_names_the_one_that_is_frozen_unless_it_was_frozen_too(
    time: _Time, tmp_path: Path, caplog: pytest.LogCaptureFixture, jumps: list[float], named: list[str]
) -> None:
    reports: list[StoodStill] = []
    dog = Watchdog(600, reports.append)
    time.rest = dog.rest
    dog.follow(Peers(tmp_path, Identity(0, 2, 0, 2, "a", "none"), ["a", "b"], run_ahead_steps=2))
    for step in range(10):
        time.now += 0.05
        dog(step)
    passed = threading.Event()

    def pass_time() -> None:
        for jump_s in jumps:
            time.wait_for_a_look()
            time.now += jump_s
        time.wait_for_a_look()
        passed.set()

    threading.Thread(target=pass_time).start()
    _stand_in([f"{ROOT}/train/comm/communicator.py"], partial(passed.wait, WAIT_S))
    told = [each.split(": ")[1] for each in caplog.messages]
    dog.rest()  # after which the thread may say that the rank responds again
    assert (reports, told) == ([], named)


# The lock of Python is held from the watchdog's start to the call in C, so that its thread never looks.
HELD = """
import ctypes, sys
from train.rank.watchdog import Watchdog
in_c = ctypes.PyDLL(None)
sys.setswitchinterval(1000)
Watchdog(1, print)
in_c.sleep(120)
"""


@pytest.mark.medium
def test_a_process_that_holds_pythons_lock_is_ended_too_and_prints_where_it_stood() -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        errors = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == -signal.SIGALRM
    assert 'File "<string>", line 7 in <module>' in errors


@pytest.mark.medium
@pytest.mark.parametrize(
    "report", ["print", "lambda found: print(found, file=sys.stderr, flush=True)"], ids=["stacks", "report"]
)
def test_a_process_whose_errors_nobody_reads_is_ended_too_long_before_its_time(report: str) -> None:
    """The pipe is full, as behind a pager or Ctrl-S, so that the stacks wait for ever, or the report before them."""
    # Its peers say that it must end now, and not in 300 s.
    peers = "types.SimpleNamespace(look=lambda *_: True)"
    standing = f"import time, types; Watchdog(300, {report}).follow({peers}); time.sleep(120)"
    receives, sends = os.pipe()
    try:
        os.set_blocking(sends, False)
        with suppress(BlockingIOError):
            while True:
                os.write(sends, b"x")
        os.set_blocking(sends, True)
        code = HELD.partition("in_c")[0] + standing
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, stderr=sends, check=False, timeout=WAIT_S)
        assert done.returncode == -signal.SIGALRM
    finally:
        os.close(receives)
        os.close(sends)


# Stands for a rank in a collective, which cannot heed SIGTERM; its launcher is the shell.
ORPHAN = """
import signal, time
from train.rank import watchdog
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
watchdog.die_with_parent()
print("stands", flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.medium
def test_a_rank_that_cannot_heed_sigterm_ends_soon_after_the_process_that_started_it() -> None:
    command = ["bash", "-c", '"$@" & wait', "launcher", sys.executable, "-c", ORPHAN]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "stands\n"
        assert not select.select([launcher.stdout], [], [], 1)[0], "it lives as long as its launcher"
        launcher.kill()
        assert launcher.stdout.read() == "told\n", "and ends without a further kill"
