"""A rank that stands still ends with status 1, and says truly where it stood and whether it waited for others."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.load import ROOT
from train.rank import watchdog

# The code that stands still is compiled under the name of a file: the watchdog sees no more of a frame than that.
# The process of each stack of files is a fork, which need not import anything.
STANDS = """
import json, os, pathlib, sys, time
from train.rank import watchdog
watchdog._LAST_WORDS_S = 0.3

def stand_in(folder, paths):
    def report(error):
        (folder / "new").write_text(json.dumps([str(error), error.step, error.waits]))
        (folder / "new").rename(folder / "report.json")

    tell = watchdog.Watchdog(1.0, report)
    for step in range(3):
        tell(step)
    tell()
    stand = lambda: time.sleep(20)
    for path in reversed(paths):
        names = {"call": stand}
        exec(compile("def stand(): call()", path, "exec"), names)
        stand = names["stand"]
    stand()

for number, paths in enumerate(json.loads(sys.argv[2])):
    folder = pathlib.Path(sys.argv[1]) / str(number)
    folder.mkdir()
    if os.fork() == 0:
        (folder / "pid").write_text(str(os.getpid()))
        stand_in(folder, paths)
for _ in json.loads(sys.argv[2]):
    print(os.WEXITSTATUS(os.wait()[1]))
"""

THREADS = 3
"""Of a process that is watched: its own, the watchdog's and that of the timer in the C library."""

PLACES = {
    "loop": ([f"{ROOT}/train/loop.py"], "train/loop.py:1 (stand)", False),
    "our home of MXNet": ([f"{ROOT}/train/engine/mxnet/lars.py"], "train/engine/mxnet/lars.py:1 (stand)", False),
    "communicator": ([f"{ROOT}/train/comm/communicator.py"], "train/comm/communicator.py:1 (stand)", True),
    "key-value stores": ([f"{ROOT}/train/comm/kvstore.py"], "train/comm/kvstore.py:1 (stand)", True),
    "PyTorch": ([f"{ROOT}/train/engine/torch/engine.py"], "train/engine/torch/engine.py:1 (stand)", True),
    "MXNet": ([f"{ROOT}/train/loop.py", "/x/site-packages/mxnet/nd.py"], "train/loop.py:1 (stand)", True),
    "Horovod": (
        [f"{ROOT}/train/loop.py", f"{ROOT}/.venv/lib/site-packages/horovod/mxnet/mpi_ops.py"],
        "train/loop.py:1 (stand)", True,
    ),
    "DALI": ([f"{ROOT}/data/input/stream.py", "/x/site-packages/nvidia/dali/pipeline.py"],
             "data/input/stream.py:1 (stand)", False),
}  # fmt: skip


def _start(folder: Path, *stacks: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process for each stack of files, from the caller to the one that stands still."""
    command = [sys.executable, "-c", STANDS, str(folder), json.dumps(stacks)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.medium
def test_a_rank_waits_for_others_only_in_a_library_call_or_where_ranks_meet(tmp_path: Path) -> None:
    with _start(tmp_path, *(paths for paths, *_ in PLACES.values())) as processes:
        statuses, stacks = processes.communicate(timeout=60)
    assert statuses.split() == ["1"] * len(PLACES)
    told = {
        name: json.loads((tmp_path / str(number) / "report.json").read_text(encoding="utf-8"))
        for number, name in enumerate(PLACES)
    }
    assert told == {
        name: [f"no progress for 1 s, standing in {named}", 2, waits] for name, (_, named, waits) in PLACES.items()
    }
    assert f'File "{ROOT}/train/loop.py", line 1 in stand' in stacks, "the stacks of all threads"


def _num_threads(pid: Path) -> int:
    """Return the number of threads of the process whose number a file holds; 0 until it is there."""
    number = pid.read_text() if pid.is_file() else ""
    return len(list(Path(f"/proc/{number}/task").iterdir())) if number else 0


@pytest.mark.medium
def test_a_rank_that_was_frozen_blames_itself(tmp_path: Path) -> None:
    pid = tmp_path / "0" / "pid"
    with _start(tmp_path, [f"{ROOT}/train/comm/communicator.py"]) as process:
        while _num_threads(pid) != THREADS:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(int(pid.read_text()), signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(int(pid.read_text()), signal.SIGCONT)
        statuses, _ = process.communicate(timeout=60)
    message, _, waits = json.loads((tmp_path / "0" / "report.json").read_text(encoding="utf-8"))
    assert message.startswith("stood still itself for ")
    assert (waits, statuses.split()) == (False, ["1"])


def test_the_timer_in_c_leaves_time_for_a_report_although_it_is_seldom_set_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers_s: list[float] = []
    timer = SimpleNamespace(
        dump_traceback_later=lambda seconds, exit: timers_s.append(seconds), cancel_dump_traceback_later=lambda: None
    )
    monkeypatch.setattr(watchdog, "faulthandler", timer)  # not that of the whole process, which limits this test
    watchdog.Watchdog(600, print).rest()
    assert timers_s == [pytest.approx(600 + 60 + watchdog._BACKSTOP_S)]


# Only the timer in C is left where no thread of Python gets its turn.
TIMED = """
import sys, time
from train.rank import watchdog
watchdog._BACKSTOP_S = 0.05
first, expected, rests, calls = sys.argv[1:]
if not rests:
    watchdog.Watchdog._watch = lambda _: None
dog = watchdog.Watchdog(float(first), print)
if expected:
    dog.expect(float(expected))
if rests:
    dog.rest()
for _ in range(int(calls)):
    time.sleep(0.1)
    dog()
time.sleep(0.8)
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("first", "expected", "rests", "calls", "status"),
    [("0.2", "", "", 0, 1), ("99", "0.2", "", 0, 1), ("0.2", "", "yes", 0, 0), ("1", "", "", 13, 0)],
)
def test_a_process_that_holds_pythons_lock_is_ended_too_unless_the_watchdog_rests_or_hears_of_progress(
    first: str, expected: str, rests: str, calls: int, status: int
) -> None:
    command = [sys.executable, "-c", TIMED, first, expected, rests, str(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("Timeout" in done.stderr) == bool(status)


# Stands for a rank in a collective, which cannot heed SIGTERM; its launcher is the shell.
ORPHAN = """
import signal, time
from train.rank import watchdog
watchdog._ORPHAN_S = 0.5
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
        assert not select.select([launcher.stdout], [], [], 2)[0], "it lives as long as its launcher"
        launcher.kill()
        assert launcher.stdout.read() == "told\n", "and ends without a further kill"
